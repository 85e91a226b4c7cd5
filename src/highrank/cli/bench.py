"""`highrank bench …`: time and memory, as ratios measured in one run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from highrank.cli.console import Threads, check_outputs, progress, show, unless_given, write_outputs
from highrank.environment import set_threads
from highrank.files import check_writable

Picture = Annotated[Path | None, unless_given("none", "FILE")]


@dataclass(frozen=True, kw_only=True)
class Options:
    rounds: int = 5
    """How often times are taken; the best counts."""
    quick: bool = False
    """Fewer tokens, sizes, blocks or rounds: a minute or two, rough numbers."""
    json: bool = False
    """Print the numbers as JSON instead of a table."""
    threads: Threads = None
    """Threads of the matrix multiplies."""


Common = Annotated[Options, tyro.conf.arg(name="")]
DEFAULTS = Options()


def loss(
    *,
    shapes: Annotated[tuple[str, ...], unless_given("all; with --quick ptb")] = (),
    chunk_bytes: Annotated[int | None, unless_given("the package's own", "INT")] = None,
    out: Path = Path("highrank-bench-loss.html"),
    picture: Picture = None,
    options: Common = DEFAULTS,
) -> None:
    """Compare implementations of the mixture's loss and gradients: time and memory.

    Writes a page with pictures, JSON beside it. All shapes take half an hour.

    Args:
        shapes: What to measure: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies),
            one-small, one, one-gpt2 (one softmax, beside torch's own losses).
        chunk_bytes: Memory for the logits of one chunk of tokens.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the page's first picture, as PNG.
        options: How to measure.
    """
    check_outputs(out, picture)
    from highrank.studies.bench.loss import run_loss_bench
    from highrank.studies.bench.page import loss_page, loss_picture, loss_table

    run = partial(run_loss_bench, shapes, chunk_bytes=chunk_bytes)
    result = _measure("Measuring the mixture's loss", run, options)
    write_outputs(result, loss_page(result), out)
    if picture is not None:
        loss_picture(result, picture)
    show(result, loss_table, json=options.json, page=out)


def heads(
    *,
    kinds: Annotated[tuple[str, ...], unless_given("all")] = (),
    picture: Picture = None,
    options: Common = DEFAULTS,
) -> None:
    """Compare the output layers with one softmax: time, memory and multiplies.

    Args:
        kinds: Keys of heads, as --head.kind of train takes them.
        picture: Also write a picture of the times, as PNG.
        options: How to measure.
    """
    if picture is not None:
        check_writable(picture)
    from highrank.studies.bench.heads import run_head_bench
    from highrank.studies.bench.page import head_picture

    result = _show("Measuring heads", partial(run_head_bench, kinds), options)
    if picture is not None:
        head_picture(result, picture)


def step(options: Common = DEFAULTS) -> None:
    """Compare a training step of ptb-mos with the original head's and ptb-softmax's."""
    from highrank.studies.bench.step import run_step_bench

    _show("Measuring a training step", run_step_bench, options)


def hf(*, model: Literal["gpt2", "marian"] = "gpt2", options: Common = DEFAULTS) -> None:
    """Compare training steps of a Hugging Face model: ten minutes, 8 GB of memory.

    Args:
        model: A GPT-2 small, or a Marian: the encoder–decoder of the OPUS translation models.
    """
    from highrank.studies.bench.huggingface import run_huggingface_bench

    _show(f"Measuring a {model}", partial(run_huggingface_bench, model), options)


def _measure(title: str, run: Callable[..., Any], options: Options) -> Any:
    set_threads(options.threads)
    with progress(title) as on_progress:
        return run(rounds=options.rounds, quick=options.quick, on_progress=on_progress)


def _show(title: str, run: Callable[..., Any], options: Options) -> Any:
    from highrank.studies.bench.page import bench_table

    show(result := _measure(title, run, options), bench_table, json=options.json)
    return result


BENCHMARKS: dict[str, Callable[..., Any]] = {"loss": loss, "heads": heads, "step": step, "hf": hf}
