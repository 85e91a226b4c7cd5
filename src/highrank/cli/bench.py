"""`highrank bench …`: time and memory, as ratios measured in one run."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from highrank.cli.console import (
    Threads,
    check_outputs,
    progress,
    show,
    unless_given,
    write_outputs,
)
from highrank.environment import set_threads


def loss(
    *,
    shapes: Annotated[tuple[str, ...], unless_given("all; with --quick ptb")] = (),
    rounds: int = 5,
    quick: bool = False,
    chunk_bytes: Annotated[int | None, unless_given("the package's own", "INT")] = None,
    json: bool = False,
    out: Path = Path("highrank-bench-loss.html"),
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
    threads: Threads = None,
) -> None:
    """Compare implementations of the mixture's loss and gradients: time and memory.

    Prints a table, and writes a page with pictures and a JSON file beside it.

    All shapes take about half an hour on two cores.

    Args:
        shapes: What to measure: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies),
            one-small, one, one-gpt2 (one softmax, beside torch's own losses).
        rounds: How often each variant's time is taken; the best counts.
        quick: A tenth of the tokens and two rounds: about a minute, rough numbers.
        chunk_bytes: Memory for the logits of one chunk of tokens.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the page's first picture, as PNG.
        threads: Of the matrix multiplies.
    """
    check_outputs(out, picture)
    set_threads(threads)
    from highrank.studies.bench.loss import run_loss_bench
    from highrank.studies.bench.page import loss_page, loss_picture
    from highrank.studies.bench.table import loss_table

    options = {"rounds": rounds, "quick": quick, "chunk_bytes": chunk_bytes}
    result = _run("Measuring the mixture's loss", run_loss_bench, shapes, **options)
    write_outputs(result, loss_page(result), out)
    if picture is not None:
        loss_picture(result, picture)
    show(result, loss_table, json=json, page=out)


def sharded(
    *,
    shape: str = "ptb",
    rounds: int = 5,
    quick: bool = False,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare the loss with the vocabulary in two processes with the loss in one.

    Args:
        shape: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies).
        rounds: How often each variant's time is taken; the best counts.
        quick: A tenth of the tokens: rough numbers.
        json: Print the numbers as JSON instead of a table.
        threads: Of all processes together.
    """
    set_threads(threads)
    from highrank.studies.bench.sharded import run_sharded_bench
    from highrank.studies.bench.table import sharded_table

    options = {"rounds": rounds, "quick": quick}
    result = _run("Measuring a sharded vocabulary", run_sharded_bench, shape, **options)
    show(result, sharded_table, json=json)


def heads(
    *,
    kinds: Annotated[tuple[str, ...], unless_given("all")] = (),
    rounds: int = 5,
    quick: bool = False,
    json: bool = False,
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
    threads: Threads = None,
) -> None:
    """Compare the output layers: forward and backward, time, memory and multiplies.

    As ratios to one softmax of equal E and V, at four sizes.

    Args:
        kinds: Keys of heads, as --head.kind of train takes them.
        rounds: How often each variant's time is taken; the best counts.
        quick: The smallest size only: rough numbers.
        json: Print the numbers as JSON instead of a table.
        picture: Also write a picture of the times, as PNG.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    from highrank.studies.bench.heads import run_head_bench
    from highrank.studies.bench.page import head_picture
    from highrank.studies.bench.table import head_table

    result = _run("Measuring heads", run_head_bench, kinds, rounds=rounds, quick=quick)
    show(result, head_table, json=json)
    if picture is not None:
        head_picture(result, picture)


def step(
    *, rounds: int = 5, quick: bool = False, json: bool = False, threads: Threads = None
) -> None:
    """Compare a training step of ptb-mos with the original head's and ptb-softmax's.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: Windows of 10 tokens instead of 70: rough numbers.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    from highrank.studies.bench.step import run_step_bench
    from highrank.studies.bench.table import step_table

    result = _run("Measuring a training step", run_step_bench, rounds=rounds, quick=quick)
    show(result, step_table, json=json)


def hf(
    *, rounds: int = 5, quick: bool = False, json: bool = False, threads: Threads = None
) -> None:
    """Compare training steps of a GPT-2: dense logits, and mixtures by our loss.

    GPT-2 small, V = 50,257, random weights: our loss against dense logits.

    It takes some ten minutes on two free cores, and 8 GB of memory.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: Two blocks and fewer tokens: a minute or two, rough numbers.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    from highrank.studies.bench.huggingface import run_huggingface_bench
    from highrank.studies.bench.table import huggingface_table

    result = _run("Measuring a GPT-2", run_huggingface_bench, rounds=rounds, quick=quick)
    show(result, huggingface_table, json=json)


def evaluation(
    *, rounds: int = 5, quick: bool = False, json: bool = False, threads: Threads = None
) -> None:
    """Compare dynamic evaluation with plain passes, the cache with static evaluation.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: Fewer tokens: rough ratios.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    from highrank.studies.bench.evaluation import run_evaluation_bench
    from highrank.studies.bench.table import evaluation_table

    result = _run("Measuring evaluation", run_evaluation_bench, rounds=rounds, quick=quick)
    show(result, evaluation_table, json=json)


def audit(
    *, rounds: int = 1, quick: bool = False, json: bool = False, threads: Threads = None
) -> None:
    """Compare singular values without holding the matrix with an SVD of it.

    At full size it takes the better part of an hour.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        quick: A fifth of the contexts and of the vocabulary: a minute or two, rough numbers.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    from highrank.studies.bench.spectrum import run_audit_bench
    from highrank.studies.bench.table import audit_table

    result = _run("Measuring an audit", run_audit_bench, rounds=rounds, quick=quick)
    show(result, audit_table, json=json)


def language(
    *,
    runs: Path = Path("runs/language"),
    contexts: int = 100,
    epochs: int = 5,
    budget: Annotated[str | None, unless_given("epochs decide", "TIME")] = None,
    seed: int = 0,
    threads: Threads = None,
    json: bool = False,
) -> None:
    """Do trained AWD-LSTMs reach what their heads can express of an exact language?

    A softmax and a mixture, E = 16; 2 million tokens, log P of rank 64.

    An hour on one core. After Ctrl-C the same command resumes.

    Args:
        runs: Where the three runs go.
        contexts: Of the language, a square from 64 on: 100, or 400 for a harder one.
        epochs: Passes over the training split.
        budget: Equal time for each head instead of epochs: 90s, 6m.
        seed: Of the language and the weights.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    from highrank.studies.demo.learned import run_learned_language
    from highrank.studies.demo.page import learned_language_table
    from highrank.training.budget import parse_duration
    from highrank.training.trainer import Diverged

    set_threads(threads)
    options = {
        "num_contexts": contexts,
        "epochs": epochs,
        "budget": None if budget is None else parse_duration(budget),
        "seed": seed,
    }
    try:
        result = _run("Learning a language", run_learned_language, runs, **options)
    except Diverged as error:
        raise ValueError(f"{error} Try another --seed") from None
    show(result, learned_language_table, json=json)


def _run(title: str, run: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with progress(title) as on_progress:
        return run(*arguments, **options, on_progress=on_progress)


BENCHMARKS: dict[str, Callable[..., Any]] = {
    "loss": loss,
    "heads": heads,
    "sharded": sharded,
    "step": step,
    "hf": hf,
    "eval": evaluation,
    "audit": audit,
    "language": language,
}
