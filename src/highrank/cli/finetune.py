"""`highrank finetune MODEL TEXT`: upgrade a Hugging Face model, train it, compare."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from highrank.cli.console import Threads, plain_console, progress, show, unless_given, write_outputs
from highrank.studies.finetune.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from highrank.progress import OnProgress

PAGE_FILE = "finetune.html"


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    num_components: Annotated[int, tyro.conf.arg(name="components")] = 4
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    steps: Annotated[int | None, unless_given("one epoch, or all the budget", "INT")] = None
    head_lr: Annotated[float | None, unless_given("0.64 / hidden size", "FLOAT")] = None
    out: Annotated[Path | None, unless_given("runs/finetune-<n>", "DIR")] = None
    """Folder of models, page and numbers. The same command with the same folder resumes."""
    threads: Threads = None
    """Threads of the matrix multiplies."""
    json: bool = False
    """Print the numbers as JSON instead of a table."""


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def finetune(options: Annotated[Options, tyro.conf.arg(name="")]) -> None:
    """Upgrade a Hugging Face model to a mixture and train it on a text.

    Two controls at equal tokens and time: its softmax, and added weights alone.

    Encoder–decoders train on pairs: highrank finetune --task translation --help
    """
    from highrank.integrations.huggingface.library import check_installed

    check_installed("finetune a model")
    from highrank.studies.finetune.measure import run_finetune
    from highrank.studies.finetune.page import finetune_page, finetune_table

    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    train_and_show(options, partial(run_finetune, settings), finetune_table, finetune_page)


def train_and_show(
    options: Any,
    run: Callable[[Path, "OnProgress"], Any],
    table: Callable[[Any], "Table"],
    page: Callable[[Any, str], str],
) -> None:
    """Train in a folder, print the table and write the page; Ctrl-C saves.

    Args:
        options: of the command: out, threads and json.
        run: returns what was measured.
        page: of the result and the command that resumes.
    """
    from highrank.environment import set_threads
    from highrank.run.folder import new_run
    from highrank.training.signals import Stopped

    set_threads(options.threads)
    folder = options.out or new_run(Path("runs"), "finetune")
    command = ["highrank", *sys.argv[1:]]
    if options.out is None:
        command += ["--out", str(folder)]
    try:
        with progress("Training") as on_progress:
            result = run(folder, on_progress)
    except Stopped as signal:
        plain_console().print(f"Saved. Resume with: {shlex.join(command)}")
        sys.exit(128 + signal.args[0])
    finally:
        # A mistake that was found before anything was trained leaves no empty folder.
        if options.out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    path = folder / PAGE_FILE
    show(result, table, json=options.json, page=path)
    write_outputs(result, page(result, shlex.join(command)), path)
