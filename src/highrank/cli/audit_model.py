"""Which model a name stands for: a run, a folder of transformers, a name on the hub."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank.cli.run import load_run
from highrank.integrations.hub import HubError, is_hub_name

if TYPE_CHECKING:
    from highrank.experiments.audit_model import AuditedModel

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
    from highrank.experiments.audit_model import audited_hugging_face, audited_run

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
