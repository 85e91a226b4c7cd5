"""Runs, comparisons and finetunings in a folder, from their JSON files alone.

Neither weights nor checkpoints are loaded, and torch is not imported.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

from highrank.files import file_sha256, read_json

# As their own modules name them: those import torch.
RUN, COMPARISON, FINETUNING = "highrank run", "highrank comparison", "highrank finetuning"
PAIRS = "highrank pairs"
DAMAGES = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, ArithmeticError)


class State(StrEnum):
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A head and its perplexities; None where they were not measured."""

    head: str
    method: str
    """static, dynamic, cache; of comparisons and of pairs: equal tokens or equal time."""
    valid: float | None
    test: float | None
    bits_per_byte: float | None = None
    """Of test, else of valid, where the size of the text is known."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    folder: str
    kind: str
    """run, comparison or finetuning."""
    state: State
    date: str
    """When its numbers were last written, UTC."""
    corpus: str = ""
    measured: tuple[Measured, ...] = ()
    tokens: int | None = None
    """Tokens that each model was trained on."""
    seconds: float | None = None
    """Seconds of training of each model."""
    budget: float | None = None
    """Seconds that a finished run had; None without --budget."""
    problem: str = ""
    """The damage."""


def list_runs(folder: Path) -> list[Entry]:
    """Everything that `train`, `compare` and `finetune` made in the folder, the newest first."""
    if not folder.is_dir():
        raise ValueError(
            f"the folder must exist, got {folder}: `highrank train` makes runs in runs/"
        )
    found = (_entry(child) for child in sorted(folder.iterdir()) if child.is_dir())
    return sorted((one for one in found if one is not None), key=lambda e: e.date, reverse=True)


def _entry(folder: Path) -> Entry | None:
    """None if nothing of ours is in the folder."""
    for name, form, kind, written, read in (
        ("config.json", RUN, RUN, "metrics.jsonl", _run),
        ("plan.json", COMPARISON, COMPARISON, "report.json", _comparison),
        ("settings.json", FINETUNING, FINETUNING, "finetune.json", _finetuning),
        ("settings.json", PAIRS, FINETUNING, "finetune.json", _pairs),
    ):
        file = folder / name
        if not file.is_file():
            continue
        times = [path.stat().st_mtime for path in (file, folder / written) if path.is_file()]
        about: dict[str, Any] = {
            "folder": str(folder),
            "kind": kind.removeprefix("highrank "),
            "date": datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d %H:%M"),
        }
        try:
            content = read_json(file)
            if content.get("format") == form:
                return Entry(**about, **read(folder, content))
        except DAMAGES as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            return Entry(**about, state=State.DAMAGED, problem=problem)
    return None


def _run(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    events = list(_events(folder / "metrics.jsonl"))
    nothing: Mapping[str, Any] = {}
    end = next((one for one in reversed(events) if one["event"] == "end"), nothing)
    losses = [one["valid_loss"] for one in events if one["event"] == "epoch"]
    last = next((one for one in reversed(events) if "tokens" in one), nothing)
    static = {"valid": end.get("valid_loss", min(losses, default=None))}
    values = {"static": static | {"test": end.get("test_loss")}}
    for result in _results(folder):
        values.setdefault(result["method"], {})[result["split"]] = result["nats"]
    kind, num_components = config["head"]["kind"], config["head"]["num_components"]
    head = f"{kind}, K = {num_components}" if num_components > 1 else str(kind)
    return {
        "corpus": str(config["corpus"]),
        "state": State.FINISHED if end else State.UNFINISHED,
        "measured": tuple(
            replace(
                _measured(head, method, nats.get("valid"), nats.get("test")),
                bits_per_byte=_bits_per_byte(folder, nats),
            )
            for method, nats in values.items()
        ),
        "tokens": last.get("tokens"),
        "seconds": last.get("seconds"),
        "budget": end.get("budget"),
    }


def _bits_per_byte(folder: Path, nats: Mapping[str, float | None]) -> float | None:
    """From the nats of a token in each split, by what the run recorded of its corpus."""
    name = next((name for name in ("test", "valid") if nats.get(name) is not None), None)
    file = folder / "corpus.json"
    if name is None or not file.is_file():
        return None
    split = read_json(file)["header"]["splits"][name]
    loss = nats[name]
    assert loss is not None
    return float(loss / math.log(2) * split["num_tokens"] / split["num_bytes"])


def _events(file: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a log; the last may be half written."""
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else [""]
    for line in lines[:-1]:
        yield json.loads(line)


def _results(folder: Path) -> list[Mapping[str, Any]]:
    """Evaluations of the best model on splits of the corpus, in the order of their dates."""
    found = [read_json(file) for file in sorted(folder.glob("results/*.json")) if file.is_file()]
    if not found:
        return []
    # Others are of the model as it was before the run was resumed.
    digest = file_sha256(folder / "model.safetensors")
    return [
        one for one in found if one["split"] in ("valid", "test") and one["model_sha256"] == digest
    ]


def _comparison(folder: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    file = folder / "report.json"
    report: Any = {"regimes": (), "is_complete": False}
    if file.is_file():
        report = read_json(file)
    return {
        "corpus": Path(plan["corpus"]).name,
        "state": State.FINISHED if report["is_complete"] else State.UNFINISHED,
        "measured": tuple(
            _measured(row["name"], f"equal {regime['name']}", row["valid_loss"], row["test_loss"])
            for regime in report["regimes"]
            for row in regime["rows"]
        ),
        "tokens": plan["num_tokens"],
        "seconds": plan["cpu_seconds"],
    }


def _finetuning(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    file = folder / "finetune.json"
    rows = read_json(file)["equal_tokens"]["rows"] if file.is_file() else ()
    size = settings["batch_size"] * settings["block_length"]
    return {
        "corpus": f"{Path(settings['model']).name} on {Path(settings['text']).name}",
        "state": State.FINISHED if rows else State.UNFINISHED,
        "measured": tuple(
            _measured(row["variant"], "equal tokens", row["nats"]["value"], None) for row in rows
        ),
        "tokens": round(size * max(row["step"] for row in rows)) if rows else None,
    }


def _pairs(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """An encoder–decoder on pairs: valid is its loss in training, test that of the scores."""
    paths, config = list(settings["paths"]), settings["config"]
    model, *data = [Path(path).name for path in ([config, *paths] if config else paths)]
    about: dict[str, Any] = {"corpus": f"{' '.join(data)} ({settings['task']}, {model})"}
    file = folder / "finetune.json"
    if not file.is_file():
        return about | {"state": State.UNFINISHED}
    result = read_json(file)
    return about | {
        "state": State.FINISHED,
        "measured": tuple(
            replace(
                _measured(
                    row["variant"],
                    method,
                    _valid_nats(result["models"], row["variant"], row["step"]),
                    row["cells"]["nats"]["mean"],
                ),
                bits_per_byte=row["cells"]["bits_per_byte"]["mean"],
            )
            for method in ("equal tokens", "equal time")
            for row in result[method.replace(" ", "_")]["rows"]
        ),
        "tokens": round(result["equal_tokens"]["at"]),
        "seconds": result["equal_time"]["at"],
    }


def _valid_nats(models: Sequence[Mapping[str, Any]], variant: str, step: int) -> float:
    """Mean over the seeds of a variant."""
    return fmean(
        point["valid_nats"]
        for model in models
        if model["variant"] == variant
        for point in model["points"]
        if point["step"] == step
    )


def _measured(head: str, method: str, valid: float | None, test: float | None) -> Measured:
    """Perplexities from nats."""
    values = [None if nats is None else math.exp(min(nats, 700.0)) for nats in (valid, test)]
    return Measured(head=head, method=method, valid=values[0], test=values[1])
