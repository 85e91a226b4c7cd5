"""A run's configuration as JSON: `config.json`, with the format's name and version."""

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from highrank.build import canonical, check_options
from highrank.config import RunConfig
from highrank.files import from_json, read_json, without_format

CONFIG_FILE = "config.json"
FORMAT, VERSION = "highrank run", 3
# Where `highrank train` puts runs.
RUNS = Path("runs")


def is_run(folder: Path) -> bool:
    """Whether `highrank train` made the folder: others have a config.json, too."""
    return _values(folder).get("format") == FORMAT


def is_hugging_face(folder: Path) -> bool:
    """Whether it is the folder of a Hugging Face model."""
    return "model_type" in _values(folder)


def _values(folder: Path) -> Mapping[str, Any]:
    """What config.json has; nothing if it is damaged or missing."""
    try:
        content = read_json(folder / CONFIG_FILE)
    except ValueError:
        return {}
    return content if isinstance(content, Mapping) else {}


def read_config(folder: Path) -> RunConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"a run must be a folder that `highrank train` made, got {folder}{nearest_run(folder)}"
        )
    content = read_json(path)
    try:
        return config_from_json(content)
    except ValueError as error:
        raise ValueError(f"{path} must be the configuration of a run: {error}") from None


def nearest_run(folder: Path) -> str:
    """The end of a message about a folder that does not exist; empty if no run has such a name."""
    if folder.exists():
        return ""
    found = {
        file.parent.name: file.parent
        for parent in (folder.parent, RUNS)
        for file in sorted(parent.glob(f"*/{CONFIG_FILE}"))
    }
    close = get_close_matches(folder.name, found, n=1)
    return f": did you mean {found[close[0]]}?" if close else ""


def config_to_json(config: RunConfig) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION} | dataclasses.asdict(config)


def config_from_json(values: Any) -> RunConfig:
    """The configuration that `config_to_json` made, its values of their types and ranges."""
    config = canonical(from_json(RunConfig, without_format(values, FORMAT, VERSION)))
    check_options(config)
    return config


def check_same_config(folder: Path, old: RunConfig, config: RunConfig) -> None:
    """Raise if a run that began with one configuration is to be resumed with another."""
    if old != config:
        changed = _first_difference(dataclasses.asdict(old), dataclasses.asdict(config))
        raise ValueError(
            f"the run's folder must be new or have the same configuration, got {folder} with "
            f"{changed}: choose another, or resume without changes: "
            f"`highrank train --resume {folder}`"
        )


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """The option that differs, as a user would write it."""
    name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
    if isinstance(old.get(name), dict) and isinstance(new.get(name), dict):
        # Options stand beside the fields that every kind has: --model.hidden-sizes.
        inner = prefix if name == "options" else f"{prefix}{name.replace('_', '-')}."
        return _first_difference(old[name], new[name], inner)
    option = f"{prefix}{name.replace('_', '-')}"
    return f"{option} {old.get(name, 'left out')}, not {new.get(name, 'left out')}"
