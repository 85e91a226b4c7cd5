"""A run's folder: its files, their names and versions, loading what is in it.

config.json         everything that decides the run's numbers
vocabulary.json     the tokens
token_counts.json   how often the training split has each of them
model.safetensors   the best model so far, a tied embedding once
metrics.jsonl       one line per event
trainer.pt          the checkpoint, which alone is needed to resume
"""

import copy
import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from highrank.build import build_model
from highrank.config import RunConfig
from highrank.data.catalog import find_corpus
from highrank.data.corpus import Corpus
from highrank.data.vocabulary import Vocabulary
from highrank.environment import check_device
from highrank.files import file_sha256, lock_file, write_atomically
from highrank.models.language_model import LanguageModel
from highrank.models.weights import load_state

FORMAT, VERSION = "highrank run", 2
CONFIG_FILE, VOCABULARY_FILE, COUNTS_FILE = "config.json", "vocabulary.json", "token_counts.json"
MODEL_FILE, METRICS_FILE, CHECKPOINT_FILE = "model.safetensors", "metrics.jsonl", "trainer.pt"
# What a run may leave behind that was killed before it had begun.
FIRST_FILES = {
    name
    for file in (VOCABULARY_FILE, COUNTS_FILE, CONFIG_FILE)
    for name in (file, f".{file}.new")
    if name != CONFIG_FILE
}
# Keys of config.json by the version that they were last used in.
RENAMED_KEYS = {
    1: {
        "batch.window": "bptt",
        "batch.window_deviation": "bptt_std",
        "batch.window_extra": "bptt_max_delta",
        "batch.short_share": "bptt_half_probability",
        "valid_columns": "valid_batch_size",
    }
}


class LoadedRun(NamedTuple):
    folder: Path
    config: RunConfig
    corpus: Corpus
    model: LanguageModel
    vocabulary: Vocabulary
    sha256: str
    """Of model.safetensors."""


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


def prepare_folder(
    folder: Path, config: RunConfig, vocabulary: Vocabulary, train: NDArray[np.integer]
) -> None:
    """Write what a run begins with; refuse a folder of another run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG_FILE
    if path.exists():
        _check_same(folder, config, vocabulary)
        return
    if strange := {file.name for file in folder.iterdir()} - FIRST_FILES:
        raise ValueError(
            f"the run's folder must be empty, got {folder} with {', '.join(sorted(strange))}"
        )
    write_atomically(folder / VOCABULARY_FILE, vocabulary.save)
    counts = json.dumps(np.bincount(train, minlength=len(vocabulary)).tolist())
    write_atomically(folder / COUNTS_FILE, lambda temporary: temporary.write_text(counts))
    text = json.dumps(config_to_json(config), indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def read_config(folder: Path) -> RunConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"a run must be a folder that `highrank train` made, got {folder}")
    return config_from_json(json.loads(path.read_text()))


def read_counts(folder: Path) -> list[int] | None:
    """How often the training split has each token; None for a run of version 1."""
    path = folder / COUNTS_FILE
    if not path.is_file():
        return None
    counts: list[int] = json.loads(path.read_text())
    return counts


def load(run: str | Path, device: str = "cpu") -> tuple[LanguageModel, Vocabulary]:
    """The best model of a trained run, in evaluation mode, and its vocabulary.

    Tensors and JSON only: nothing in the folder can execute code.
    """
    folder = Path(run)
    config = read_config(folder)
    weights = folder / MODEL_FILE
    if not weights.is_file():
        raise ValueError(
            f"the run must have finished an epoch, got {folder} without {MODEL_FILE}: "
            f"run `highrank train --resume {folder}`"
        )
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    try:
        state = load_file(weights, device=device)
    except SafetensorError as error:
        raise ValueError(f"{weights} must be a whole safetensors file, got {error}") from None
    model = model_with(config, len(vocabulary), state, read_counts(folder), weights)
    return model.to(device).eval(), vocabulary


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """The best model of a run that nobody trains at the moment, and its corpus."""
    config = read_config(folder)
    if is_in_training(folder):
        raise ValueError(
            f"the run must not be in training, got {folder}: wait for its end, or press Ctrl-C "
            "there, which saves it"
        )
    check_device(device)
    corpus = find_corpus(config.corpus)
    model, vocabulary = load(folder, device)
    digest = file_sha256(folder / MODEL_FILE)
    if vocabulary != corpus.vocabulary:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got {corpus.path} with another: "
            f"prepare {corpus.name} as it was when {folder} was trained"
        )
    return LoadedRun(folder, config, corpus, model, vocabulary, digest)


def is_in_training(folder: Path) -> bool:
    """Whether a process has the run's log open to write."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return False
    with path.open() as file:
        return not lock_file(file.fileno(), is_shared=True)


def model_with(
    config: RunConfig,
    vocab_size: int,
    state: Mapping[str, torch.Tensor],
    counts: Sequence[int] | None,
    path: Path,
) -> LanguageModel:
    """The configuration's model, filled with saved weights."""
    rows = len(state["backbone.embedding.weight"])
    if rows != vocab_size:
        raise ValueError(
            f"the vocabulary must belong to the weights, got {vocab_size} tokens for {rows} "
            f"embeddings in {path}"
        )
    model = build_model(config, vocab_size, num_components_of(config, state), counts)
    load_state(model, state)
    return model


def num_components_of(config: RunConfig, state: Mapping[str, torch.Tensor]) -> int | None:
    """K of saved weights if the head was to grow, since it may not have grown yet; else None."""
    return None if config.head.grow_at is None else len(state["head.prior.weight"])


def config_to_json(config: RunConfig) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION} | dataclasses.asdict(config)


def config_from_json(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `config_to_json`, of this version or an earlier one, made."""
    content = copy.deepcopy(dict(values))
    # Runs of version 1 did not say so.
    version = content.pop("version", 1) if content.pop("format", None) == FORMAT else 1
    if version not in (*RENAMED_KEYS, VERSION):
        raise ValueError(f"config.json must have version 1 to {VERSION}, got {version}")
    for old in range(version, VERSION):
        _rename(content, RENAMED_KEYS[old])
    config = _dataclass_from(RunConfig, content)
    assert isinstance(config, RunConfig)
    return config


def _rename(content: dict[str, Any], table: Mapping[str, str]) -> None:
    for old, new in table.items():
        *groups, name = old.split(".")
        found = content
        for group in groups:
            found = found.get(group, {})
        if name in found:
            found[new] = found.pop(name)


def _dataclass_from(kind: Any, values: Mapping[str, Any]) -> Any:
    hints, names = get_type_hints(kind), {f.name for f in dataclasses.fields(kind)}
    if unknown := set(values) - names:
        raise ValueError(f"config.json must have known fields only, got {sorted(unknown)}")
    found = {}
    for name, value in values.items():
        hint = hints[name]
        kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        nested = next((k for k in kinds if dataclasses.is_dataclass(k)), None)
        if nested is not None and value is not None:
            value = _dataclass_from(nested, value)
        found[name] = tuple(value) if isinstance(value, list) else value
    return kind(**found)


def _check_same(folder: Path, config: RunConfig, vocabulary: Vocabulary) -> None:
    old = read_config(folder)
    if old != config:
        changed = _first_difference(dataclasses.asdict(old), dataclasses.asdict(config))
        raise ValueError(
            f"the run's folder must be new or have the same configuration, got {folder} with "
            f"{changed}: choose another, or resume without changes: "
            f"`highrank train --resume {folder}`"
        )
    known = folder / VOCABULARY_FILE
    if Vocabulary.load(known) != vocabulary:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got another than {known}: prepare "
            f"{config.corpus} as it was when the run began"
        )


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """Which option differs, as a user would write it."""
    name = next(name for name in old if old[name] != new[name])
    option = f"{prefix}{name.replace('_', '-')}"
    if isinstance(old[name], dict) and isinstance(new[name], dict):
        return _first_difference(old[name], new[name], f"{option}.")
    return f"{option} {old[name]}, not {new[name]}"
