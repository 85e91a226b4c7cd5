"""`highrank bench …`: time and memory, as ratios measured in one run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from highrank.cli.console import check_outputs, progress, show, unless_given, write_outputs
from highrank.environment import set_threads

Rounds = Annotated[int, tyro.conf.arg(help="How often times are taken; the best counts.")]
Json = Annotated[bool, tyro.conf.arg(help="Print the numbers as JSON instead of a table.")]
Threads = Annotated[int | None, tyro.conf.arg(metavar="INT", help="None takes all cores.")]
Picture = Annotated[Path | None, unless_given("none", "FILE")]


def loss(
    *,
    shapes: Annotated[tuple[str, ...], unless_given("all; with --quick ptb")] = (),
    rounds: Rounds = 5,
    quick: bool = False,
    chunk_bytes: Annotated[int | None, unless_given("the package's own", "INT")] = None,
    json: Json = False,
    out: Path = Path("highrank-bench-loss.html"),
    picture: Picture = None,
    threads: Threads = None,
) -> None:
    """Compare implementations of the mixture's loss and gradients: time and memory.

    Writes a page with pictures, JSON beside it. All shapes take half an hour.

    Args:
        shapes: What to measure: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies),
            one-small, one, one-gpt2 (one softmax, beside torch's own losses).
        quick: A tenth of the tokens and two rounds: about a minute, rough numbers.
        chunk_bytes: Memory for the logits of one chunk of tokens.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the page's first picture, as PNG.
    """
    check_outputs(out, picture)
    from highrank.studies.bench.loss import run_loss_bench
    from highrank.studies.bench.page import loss_page, loss_picture, loss_table

    run = partial(run_loss_bench, shapes, chunk_bytes=chunk_bytes)
    result = _measure("Measuring the mixture's loss", run, rounds, quick, threads)
    write_outputs(result, loss_page(result), out)
    if picture is not None:
        loss_picture(result, picture)
    show(result, loss_table, json=json, page=out)


def heads(
    *,
    kinds: Annotated[tuple[str, ...], unless_given("all")] = (),
    rounds: Rounds = 5,
    quick: bool = False,
    json: Json = False,
    picture: Picture = None,
    threads: Threads = None,
) -> None:
    """Compare the output layers with one softmax: time, memory and multiplies.

    Args:
        kinds: Keys of heads, as --head.kind of train takes them.
        quick: The smallest size only: rough numbers.
        picture: Also write a picture of the times, as PNG.
    """
    from highrank.studies.bench.heads import run_head_bench
    from highrank.studies.bench.page import bench_table, head_picture

    run = partial(run_head_bench, kinds)
    result = _measure("Measuring heads", run, rounds, quick, threads)
    show(result, bench_table, json=json)
    if picture is not None:
        head_picture(result, picture)


def step(
    *, rounds: Rounds = 5, quick: bool = False, json: Json = False, threads: Threads = None
) -> None:
    """Compare a training step of ptb-mos with the original head's and ptb-softmax's.

    Args:
        quick: Windows of 10 tokens instead of 70: rough numbers.
    """
    from highrank.studies.bench.page import bench_table
    from highrank.studies.bench.step import run_step_bench

    result = _measure("Measuring a training step", run_step_bench, rounds, quick, threads)
    show(result, bench_table, json=json)


def hf(
    *, rounds: Rounds = 5, quick: bool = False, json: Json = False, threads: Threads = None
) -> None:
    """Compare training steps of a GPT-2 small: our loss against dense logits.

    It takes some ten minutes on two free cores, and 8 GB of memory.

    Args:
        quick: Two blocks and fewer tokens: a minute or two, rough numbers.
    """
    from highrank.studies.bench.page import bench_table
    from highrank.studies.bench.step import run_huggingface_bench

    result = _measure("Measuring a GPT-2", run_huggingface_bench, rounds, quick, threads)
    show(result, bench_table, json=json)


def _measure(
    title: str, run: Callable[..., Any], rounds: int, quick: bool, threads: int | None
) -> Any:
    set_threads(threads)
    with progress(title) as on_progress:
        return run(rounds=rounds, quick=quick, on_progress=on_progress)


BENCHMARKS: dict[str, Callable[..., Any]] = {"loss": loss, "heads": heads, "step": step, "hf": hf}
