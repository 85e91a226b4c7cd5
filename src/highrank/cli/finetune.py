"""`highrank finetune MODEL TEXT`: upgrade a Hugging Face model, train it on, compare."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from highrank.cli.console import (
    Threads,
    check_outputs,
    plain_console,
    progress,
    show,
    unless_given,
    write_outputs,
)

if TYPE_CHECKING:
    from highrank.studies.finetune.settings import Settings

PAGE_FILE = "finetune.html"


# A help text in several lines keeps its line breaks: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    starts: tuple[Literal["residual", "identity", "new", "random", "linear"], ...] = ("residual",)
    """How a mixture starts: residual and identity change no prediction. linear is a control:
    one softmax over a linear map of the hidden state."""
    components: int = 4
    """K, the softmaxes of a mixture."""
    seeds: int = 1
    """How many of each; differences are paired by seed."""
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    """Time for everything, such as 90s, 20m or 1.5h; each model gets an equal part."""
    steps: Annotated[int | None, unless_given("one epoch, or all the budget", "INT")] = None
    """Most steps of each model."""
    weights: Literal["all", "head", "last-block"] = "all"
    """What is trained: all; the new head; the new head and the last block."""
    lr: float = 1e-4
    """Of AdamW, constant after 50 steps of warm-up."""
    head_lr: Annotated[float | None, unless_given("as --lr", "FLOAT")] = None
    """Of the weights that the upgrade adds."""
    weight_decay: float = 0.01
    """Of matrices."""
    batch_size: int = 8
    """Blocks of text in a step."""
    block_length: int = 256
    """Tokens of a block."""
    eval_tokens: int = 50_000
    """Of the held-out text in each evaluation, at most."""
    out: Annotated[Path | None, unless_given("runs/finetune-<n>", "DIR")] = None
    """Folder of models, page and numbers. The same command with the same folder resumes."""
    threads: Threads = None
    """Threads of the matrix multiplies."""
    json: bool = False
    """Print the numbers as JSON instead of a table."""


DEFAULTS = Options()


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def finetune(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    text: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")],
    options: Annotated[Options, tyro.conf.arg(name="")] = DEFAULTS,
) -> None:
    """Upgrade a Hugging Face model to a mixture and train it on a text.

    The same model goes on as a softmax: compared at equal tokens and equal time.

    Args:
        model: Folder of a causal language model, or its name on the hub.
        text: A text, or a folder of texts; its valid split is held out.
        options: How to train.
    """
    from highrank.environment import set_threads
    from highrank.integrations.huggingface.library import check_installed
    from highrank.run import new_run
    from highrank.training.signals import Stopped

    check_installed("finetune a model")
    from highrank.studies.finetune.measure import run_finetune
    from highrank.studies.finetune.page import finetune_page, finetune_table

    settings = _settings(model, text, options)
    set_threads(options.threads)
    folder = options.out or new_run(Path("runs"), "finetune")
    page = folder / PAGE_FILE
    try:
        with progress("Finetuning") as on_progress:
            result = run_finetune(settings, folder, on_progress)
    except Stopped as signal:
        plain_console().print(f"Saved. Resume with: {_command(folder, options.out is None)}")
        sys.exit(128 + signal.args[0])
    finally:
        # A mistake that was found before anything was trained leaves no empty folder.
        if options.out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    show(result, finetune_table, json=options.json, page=page)
    check_outputs(page)
    command = _command(folder, options.out is None)
    write_outputs(result, finetune_page(result, command), page)


def _settings(model: str, text: Path, options: Options) -> "Settings":
    from highrank.studies.finetune.settings import Settings
    from highrank.training.budget import parse_duration

    if options.seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {options.seeds}")
    return Settings(
        model=model,
        text=str(text),
        starts=options.starts,
        num_components=options.components,
        seeds=tuple(range(options.seeds)),
        weights=options.weights,
        lr=options.lr,
        head_lr=options.head_lr,
        weight_decay=options.weight_decay,
        batch_size=options.batch_size,
        block_length=options.block_length,
        steps=options.steps,
        budget=None if options.budget is None else parse_duration(options.budget),
        eval_tokens=options.eval_tokens,
    )


def _command(folder: Path, is_new: bool) -> str:
    """The command that resumes."""
    given = ["highrank", *sys.argv[1:]]
    return shlex.join([*given, "--out", str(folder)] if is_new else given)
