"""`highrank audit …`: the output layers of models, examined on a text."""

import shlex
import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from highrank.cli.output import check_writable
from highrank.cli.progress import progress
from highrank.cli.run import load_run
from highrank.data.atomic import write_atomically

if TYPE_CHECKING:
    from highrank.experiments.audit_model import AuditedModel


def audit(
    models: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL …]", help_behavior_hint="(required)"),
    ],
    *,
    text: Path | None = None,
    contexts: Annotated[
        int | None, tyro.conf.arg(help_behavior_hint="(default: 2000; with --quick 500)")
    ] = None,
    quick: bool = False,
    device: str = "cpu",
    json: bool = False,
    out: Path = Path("highrank-audit.html"),
    picture: Path | None = None,
) -> None:
    """Audit the output layer of one model, or of several side by side.

    Rank and spectrum against the bound, divergence of predictions, words that can never be the
    most likely, health of a mixture. Prints a table, and writes a page and a JSON file beside it.

    Args:
        models: Runs that `highrank train` made; folders of Hugging Face models; names on the hub.
        text: A text file to read. Default: the test split of a run's corpus; for Hugging Face
            models the State of the Union addresses, if they are installed.
        contexts: How many contexts of the text, spread evenly over it. The rank of a mixture is
            at most this.
        quick: About a minute: fewer contexts, and a sample of the words where all take long.
        device: Where hidden states are made, as torch names it: cpu, cuda, mps.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the spectrum as a picture, PNG.
    """
    numbers = out.with_suffix(".json")
    if numbers == out:
        raise ValueError(f"out must be a page and not end in .json, got {out}")
    for path in (out, numbers, picture):
        if path is not None:
            check_writable(path)
    if not models:
        raise ValueError("models must be given: runs, folders or names on the Hugging Face hub")
    if contexts is not None and contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {contexts}")
    from highrank.experiments.audit import run_audit
    from highrank.reports.audit import audit_page, audit_picture
    from highrank.reports.audit_table import audit_table
    from highrank.reports.page import write_page

    found = [_find(model, text, device) for model in models]
    with progress("Auditing") as on_progress:
        result = run_audit(found, num_contexts=contexts, quick=quick, on_progress=on_progress)
    lines = dumps(asdict(result), indent=2, allow_nan=False) + "\n"
    write_atomically(numbers, lambda temporary: temporary.write_text(lines, encoding="utf-8"))
    write_page(audit_page(result, shlex.join(["highrank", *sys.argv[1:]])), out)
    if picture is not None:
        audit_picture(result, picture)
    if json:
        print(dumps(asdict(result)))
        return
    console = Console(highlight=False)
    console.print(audit_table(result))
    console.print(f"The page with pictures: {out.absolute().as_uri()}", soft_wrap=True)


def _find(name: str, text: Path | None, device: str) -> "AuditedModel":
    """The model's files, checked before any work is done."""
    from highrank.experiments.audit_model import audited_hugging_face, audited_run
    from highrank.integrations.huggingface import is_hugging_face

    if is_hugging_face(name):
        return audited_hugging_face(name, text, device)
    run = load_run(Path(name), device)
    return audited_run(run.folder, run.model, run.vocabulary, run.corpus, text)
