"""`highrank finetune [MODEL] PAIRS --task …`: an encoder–decoder on pairs, head beside head."""

import shlex
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from highrank.cli.console import Threads, plain_console, progress, show, unless_given, write_outputs
from highrank.studies.pairs.settings import Settings

PAGE_FILE = "finetune.html"
FILES = unless_given("held out of the pairs", "FILE")


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL] PAIRS")]
    task: Literal["translation", "dialogue", "summary"]
    config: Annotated[str | None, unless_given("the MODEL", "NAME|DIR")] = None
    valid: Annotated[tuple[str, ...], FILES] = ()
    test: Annotated[tuple[str, ...], FILES] = ()
    columns: Annotated[tuple[str, str] | None, unless_given("source and target")] = None
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    steps: Annotated[
        int | None, unless_given("the budget, or 3 epochs, or 30 from scratch", "INT")
    ] = None
    lr: Annotated[float | None, unless_given("1e-4, or 3e-3 from scratch", "FLOAT")] = None
    head_lr: Annotated[
        float | None, unless_given("0.64 / hidden size, or --lr from scratch", "FLOAT")
    ] = None
    dropout: Annotated[float | None, unless_given("the configuration's", "FLOAT")] = None
    beam: Annotated[int | None, unless_given("5; summary 4, dialogue 10", "INT")] = None
    best: Annotated[int | None, unless_given("1; dialogue 5", "INT")] = None
    max_words: Annotated[int | None, unless_given("no limit; dialogue 30", "INT")] = None
    out: Annotated[Path | None, unless_given("runs/finetune-<n>", "DIR")] = None
    """Folder of models, page and numbers. The same command with the same folder resumes."""
    threads: Threads = None
    """Threads of the matrix multiplies."""
    json: bool = False
    """Print the numbers as JSON instead of a table."""


def finetune(options: Annotated[Options, tyro.conf.arg(name="")]) -> None:
    """Train an encoder–decoder on pairs of texts, with several output layers side by side.

    From two text files: highrank finetune my.de my.en --task translation
    --config transformer-tiny --budget 20m
    """
    from highrank.environment import set_threads
    from highrank.integrations.huggingface.library import check_installed
    from highrank.run.folder import new_run
    from highrank.training.signals import Stopped

    check_installed("train on pairs")
    from highrank.studies.pairs.measure import run_pairs
    from highrank.studies.pairs.page import pairs_page, pairs_table

    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    set_threads(options.threads)
    folder = options.out or new_run(Path("runs"), "finetune")
    # The command that resumes.
    command = ["highrank", *sys.argv[1:]]
    if options.out is None:
        command += ["--out", str(folder)]
    try:
        with progress("Training") as on_progress:
            result = run_pairs(settings, folder, on_progress)
    except Stopped as signal:
        plain_console().print(f"Saved. Resume with: {shlex.join(command)}")
        sys.exit(128 + signal.args[0])
    finally:
        # A mistake that was found before anything was trained leaves no empty folder.
        if options.out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    page = folder / PAGE_FILE
    show(result, pairs_table, json=options.json, page=page)
    write_outputs(result, pairs_page(result, shlex.join(command)), page)
