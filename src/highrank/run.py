"""A run's folder: config.json, vocabulary.json, model.safetensors, metrics.jsonl, trainer.pt.

A trained run as commands meet it: found, checked, loaded, with the corpus it was trained on.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from highrank.build import build_model, config_from_json, load_state, num_components_of
from highrank.config import RunConfig
from highrank.data.catalog import find_corpus
from highrank.data.corpus import Corpus
from highrank.data.vocabulary import Vocabulary
from highrank.environment import check_device
from highrank.files import file_sha256, lock_file, write_atomically
from highrank.models.language_model import LanguageModel

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


class LoadedRun(NamedTuple):
    folder: Path
    config: RunConfig
    corpus: Corpus
    model: LanguageModel
    vocabulary: Vocabulary
    sha256: str
    """Of model.safetensors."""


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """The best model of a run that nobody trains at the moment."""
    config = read_config(folder)
    if is_in_training(folder):
        raise ValueError(
            f"the run must not be in training, got {folder}: wait for its end, or press Ctrl-C "
            "there, which saves it"
        )
    check_device(device)
    corpus = find_corpus(config.corpus)
    model, vocabulary = load(folder, device)
    digest = file_sha256(folder / "model.safetensors")
    if vocabulary != corpus.vocabulary:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got {corpus.path} with another: "
            f"prepare {corpus.name} as it was when {folder} was trained"
        )
    return LoadedRun(folder, config, corpus, model, vocabulary, digest)


def is_in_training(run: Path) -> bool:
    """Whether a process has the run's log open to write."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return False
    with path.open() as file:
        return not lock_file(file.fileno(), is_shared=True)


def load(run: str | Path, device: str = "cpu") -> tuple[LanguageModel, Vocabulary]:
    """The best model of a trained run, in evaluation mode, and its vocabulary.

    Tensors and JSON only: nothing in the folder can execute code.
    """
    folder = Path(run)
    if not (folder / "config.json").is_file():
        raise ValueError(f"a run must be a folder that `highrank train` made, got {folder}")
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(
            f"the run must have finished an epoch, got {folder} without model.safetensors: "
            f"run `highrank train --resume {folder}`"
        )
    config = config_from_json(json.loads((folder / "config.json").read_text()))
    vocabulary = Vocabulary.load(folder / "vocabulary.json")
    try:
        state = load_file(weights, device=device)
    except SafetensorError as error:
        raise ValueError(f"{weights} must be a whole safetensors file, got {error}") from None
    return _model_with(config, vocabulary, state, weights).to(device).eval(), vocabulary


def _model_with(
    config: RunConfig, vocabulary: Vocabulary, state: Mapping[str, torch.Tensor], path: Path
) -> LanguageModel:
    rows = len(state["backbone.embedding.weight"])
    if rows != len(vocabulary):
        raise ValueError(
            f"the vocabulary must belong to the weights, got {len(vocabulary)} words for {rows} "
            f"embeddings in {path}"
        )
    model = build_model(config, len(vocabulary), num_components_of(config, state))
    load_state(model, state)
    return model
