"""`highrank bench …`: time and memory, as ratios measured in one run."""

from collections.abc import Callable
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.environment import set_threads
from highrank.files import check_writable, write_atomically
from highrank.training.budget import parse_duration


def bench() -> None:
    """Measure time and memory on this machine, as ratios of numbers from one run."""


def loss(
    *,
    shapes: Annotated[
        tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all; with --quick ptb)")
    ] = (),
    rounds: int = 5,
    quick: bool = False,
    chunk_bytes: Annotated[int | None, unless_given("the package's own", "INT")] = None,
    json: bool = False,
    out: Path = Path("highrank-bench-loss.html"),
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
) -> None:
    """Compare the ways to the mixture's loss and its gradients: time and memory.

    Prints a table, and writes a page with pictures and a JSON file beside it.

    All four shapes take about fifteen minutes on two cores.

    Args:
        shapes: What to measure: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies).
        rounds: How often each variant's time is taken; the best counts.
        quick: A tenth of the tokens and two rounds: about a minute, rough numbers.
        chunk_bytes: Memory for the logits of one chunk of tokens.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the page's first picture, as PNG.
    """
    numbers = out.with_suffix(".json")
    if numbers == out:
        raise ValueError(f"out must be a page and not end in .json, got {out}")
    for path in (out, numbers, picture):
        if path is not None:
            check_writable(path)
    from highrank.report.page import write_page
    from highrank.studies.bench.loss import run_loss_bench
    from highrank.studies.bench.page import loss_page, loss_picture
    from highrank.studies.bench.table import loss_table

    with progress("Measuring the mixture's loss") as on_progress:
        result = run_loss_bench(
            shapes, rounds=rounds, quick=quick, chunk_bytes=chunk_bytes, on_progress=on_progress
        )
    text = dumps(asdict(result), indent=2) + "\n"
    write_atomically(numbers, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    write_page(loss_page(result), out)
    if picture is not None:
        loss_picture(result, picture)
    if json:
        print(dumps(asdict(result)))
        return
    console = Console()
    console.print(loss_table(result))
    console.print(f"The page with pictures: {out.absolute().as_uri()}", soft_wrap=True)


def step(*, rounds: int = 5, quick: bool = False, json: bool = False) -> None:
    """Compare a training step of ptb-mos with the original head's and ptb-softmax's.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: Windows of 10 tokens instead of 70: rough numbers.
        json: Print the numbers as JSON instead of a table.
    """
    from highrank.studies.bench.step import run_step_bench
    from highrank.studies.bench.table import step_table

    with progress("Measuring a training step") as on_progress:
        result = run_step_bench(rounds=rounds, quick=quick, on_progress=on_progress)
    if json:
        print(dumps(asdict(result)))
    else:
        Console().print(step_table(result))


def evaluation(*, rounds: int = 5, quick: bool = False, json: bool = False) -> None:
    """Compare dynamic evaluation with plain passes, the cache with static evaluation.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: Fewer words: rough ratios.
        json: Print the numbers as JSON instead of a table.
    """
    from highrank.studies.bench.evaluation import run_evaluation_bench
    from highrank.studies.bench.table import evaluation_table

    with progress("Measuring evaluation") as on_progress:
        result = run_evaluation_bench(rounds=rounds, quick=quick, on_progress=on_progress)
    if json:
        print(dumps(asdict(result)))
    else:
        Console().print(evaluation_table(result))


def audit(*, rounds: int = 1, quick: bool = False, json: bool = False) -> None:
    """Compare singular values without holding the matrix with an SVD of it.

    At full size it takes the better part of an hour.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: A fifth of the contexts and of the words: a minute or two, rough numbers.
        json: Print the numbers as JSON instead of a table.
    """
    from highrank.studies.bench.spectrum import run_audit_bench
    from highrank.studies.bench.table import bench_audit_table

    with progress("Measuring an audit") as on_progress:
        result = run_audit_bench(rounds=rounds, quick=quick, on_progress=on_progress)
    if json:
        print(dumps(asdict(result)))
    else:
        Console().print(bench_audit_table(result))


def language(
    *,
    runs: Path = Path("runs/language"),
    contexts: int = 100,
    epochs: int = 5,
    budget: Annotated[str | None, unless_given("epochs decide", "TIME")] = None,
    seed: int = 0,
    threads: Annotated[int | None, unless_given("all cores", "INT")] = None,
    json: bool = False,
) -> None:
    """Do trained AWD-LSTMs reach what their heads can say of an exact language?

    A softmax, a mixture and a grown one, E = 16; 2 million words, log P of rank 64.

    An hour on one core. After Ctrl-C the same command goes on.

    Args:
        runs: Where the three runs go.
        contexts: Of the language, a square from 64 on: 100, or 400 for a harder one.
        epochs: Passes over the training text.
        budget: Equal time for each head instead of epochs: 90s, 6m.
        seed: Of the language and the weights.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    from highrank.studies.demo.learned import run_learned_language
    from highrank.studies.demo.page import learned_language_table
    from highrank.training.trainer import Diverged

    set_threads(threads)
    limit = None if budget is None else parse_duration(budget)
    try:
        with progress("Learning a language") as on_progress:
            result = run_learned_language(
                runs,
                num_contexts=contexts,
                epochs=epochs,
                budget=limit,
                seed=seed,
                on_progress=on_progress,
            )
    except Diverged as error:
        raise ValueError(f"{error} Try another --seed") from None
    if json:
        print(dumps(asdict(result)))
    else:
        Console().print(learned_language_table(result))


BENCHMARKS: dict[str, Callable[..., Any]] = {
    "loss": loss,
    "step": step,
    "eval": evaluation,
    "audit": audit,
    "language": language,
}
