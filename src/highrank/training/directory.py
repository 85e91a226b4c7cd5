"""A run's folder: config.json, vocabulary.json, model.safetensors, metrics.jsonl, trainer.pt."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from highrank.build import config_from_json
from highrank.config import RunConfig
from highrank.data.atomic import write_atomically
from highrank.data.vocabulary import Vocabulary

# What a run may leave behind that was killed before it had begun.
FIRST_FILES = {"vocabulary.json", ".vocabulary.json.new", ".config.json.new"}


def new_run(parent: Path, name: str) -> Path:
    """The first free folder runs/<name>-<n>, made."""
    n = 1
    while True:
        folder = parent / f"{name}-{n}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            n += 1
        else:
            return folder


def prepare_folder(folder: Path, config: RunConfig, vocabulary: Vocabulary) -> None:
    """Write the configuration and the vocabulary; refuse a folder of another run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    if path.exists():
        if read_config(folder) != config:
            changed = _first_difference(
                dataclasses.asdict(read_config(folder)), dataclasses.asdict(config)
            )
            raise ValueError(
                f"the run's folder must be new or have the same configuration, got {folder} with "
                f"{changed}: choose another, or go on without changes: "
                f"`highrank train --resume {folder}`"
            )
        known = folder / "vocabulary.json"
        if Vocabulary.load(known) != vocabulary:
            raise ValueError(
                f"the corpus must have the run's vocabulary, got another than {known}: prepare "
                f"{config.corpus} as it was when the run began"
            )
        return
    if strange := {file.name for file in folder.iterdir()} - FIRST_FILES:
        raise ValueError(
            f"the run's folder must be empty, got {folder} with {', '.join(sorted(strange))}"
        )
    write_atomically(folder / "vocabulary.json", vocabulary.save)
    text = json.dumps(dataclasses.asdict(config), indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """Which option differs, as a user would write it."""
    name = next(name for name in old if old[name] != new[name])
    option = f"{prefix}{name.replace('_', '-')}"
    if isinstance(old[name], dict) and isinstance(new[name], dict):
        return _first_difference(old[name], new[name], f"{option}.")
    return f"{option} {old[name]}, not {new[name]}"


def read_config(folder: Path) -> RunConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"a run must be a folder that `highrank train` made, got {folder}")
    return config_from_json(json.loads(path.read_text()))
