"""`highrank finetune [MODEL] PAIRS --task …`: an encoder–decoder on pairs, head beside head."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from highrank.cli.console import Threads, unless_given
from highrank.cli.finetune import train_and_show
from highrank.studies.pairs.settings import Settings

FILES = unless_given("held out of the pairs", "FILE [FILE]")


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    paths: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[MODEL] PAIRS", help_behavior_hint="(required)"),
    ]
    task: Literal["translation", "dialogue", "summary"]
    config: Annotated[str | None, unless_given("the MODEL", "NAME|DIR")] = None
    source_lang: Annotated[str | None, unless_given("the model's", "NAME")] = None
    target_lang: Annotated[str | None, unless_given("the model's", "NAME")] = None
    source_prefix: Annotated[str | None, unless_given("the model's", "TEXT")] = None
    valid: Annotated[tuple[str, ...], FILES] = ()
    test: Annotated[tuple[str, ...], FILES] = ()
    columns: Annotated[
        tuple[str, str] | None, unless_given("source and target", "SOURCE TARGET")
    ] = None
    heads: Annotated[
        tuple[str, ...],
        unless_given("softmax linear mos:4, and from scratch adaptive-mos:4", "HEAD [HEAD ...]"),
    ] = ()
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    steps: Annotated[
        int | None, unless_given("the budget, or 3 epochs, or 30 from scratch", "INT")
    ] = None
    lr: Annotated[float | None, unless_given("1e-4, or 4e-3 from scratch", "FLOAT")] = None
    head_lr: Annotated[
        float | None, unless_given("0.64 / hidden size, or --lr from scratch", "FLOAT")
    ] = None
    warmup: Annotated[
        int | None, unless_given("300, or 600 from scratch; a quarter of the steps at most", "INT")
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
    from highrank.integrations.huggingface.library import check_installed

    check_installed("train on pairs")
    from highrank.studies.pairs.measure import run_pairs
    from highrank.studies.pairs.page import pairs_page, pairs_table

    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    train_and_show(options, partial(run_pairs, settings), pairs_table, pairs_page)
