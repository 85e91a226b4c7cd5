"""A run's folder: its files, their names and versions, loading what is in it.

config.json         everything that decides the run's numbers
vocabulary.json     the tokens
token_counts.json   how often the training split has each of them
corpus.json         how the corpus was made, its hashes, where it was
model.safetensors   the best model so far, a tied embedding once
metrics.jsonl       one line per event
trainer.pt          the checkpoint, which alone is needed to resume
"""

import dataclasses
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.build import build_model, check_values
from highrank.config import RunConfig
from highrank.data.corpus import Corpus, CorpusLike
from highrank.data.recorded import RecordedCorpus, read_record, write_record
from highrank.data.vocabulary import Vocabulary
from highrank.environment import check_device
from highrank.files import checked, file_sha256, from_json, lock_file, read_json, write_atomically
from highrank.models.language_model import LanguageModel
from highrank.models.tensors import read_shapes, read_tensors
from highrank.models.weights import load_state, save_state

FORMAT, VERSION = "highrank run", 3
CONFIG_FILE, VOCABULARY_FILE, COUNTS_FILE = "config.json", "vocabulary.json", "token_counts.json"
CORPUS_FILE = "corpus.json"
MODEL_FILE, METRICS_FILE, CHECKPOINT_FILE = "model.safetensors", "metrics.jsonl", "trainer.pt"
FILES = (CONFIG_FILE, VOCABULARY_FILE, COUNTS_FILE, CORPUS_FILE, MODEL_FILE, CHECKPOINT_FILE)
# What a run may leave behind that was killed before it had begun.
FIRST_FILES = {
    name
    for file in (VOCABULARY_FILE, COUNTS_FILE, CONFIG_FILE)
    for name in (file, f".{file}.new")
    if name != CONFIG_FILE
}


class LoadedRun(NamedTuple):
    folder: Path
    config: RunConfig
    corpus: RecordedCorpus
    """What it was is known; its tokens are looked for when they are needed."""
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


def is_run(folder: Path) -> bool:
    """Whether the folder is a run, of any version: other folders may have a config.json, too."""
    try:
        content = read_json(folder / CONFIG_FILE)
    except ValueError:
        return False
    return isinstance(content, Mapping) and content.get("format") == FORMAT


def read_config(folder: Path) -> RunConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"a run must be a folder that `highrank train` made, got {folder}")
    content = read_json(path)
    try:
        return config_from_json(content)
    except ValueError as error:
        raise ValueError(f"{path} must be the configuration of a run: {error}") from None


def read_counts(folder: Path, vocab_size: int) -> list[int]:
    """How often the training split has each token."""
    path = folder / COUNTS_FILE
    content = read_json(path)
    try:
        counts = list(checked(tuple[int, ...], content, "the content"))
        if len(counts) != vocab_size or min(counts) < 0:
            raise ValueError(f"{vocab_size} counts are needed, got {len(counts)}")
    except ValueError as error:
        raise ValueError(f"{path} must be a list of counts: {error}") from None
    return counts


def record_corpus(folder: Path, corpus: CorpusLike) -> None:
    """Keep with the run what its corpus is and where, unless it was made in memory."""
    if not isinstance(corpus, Corpus):
        return
    path = folder / CORPUS_FILE
    try:
        old = read_record(path, "")
        if (old.header, old.path) == (corpus.header, corpus.path.absolute()):
            return
    except ValueError:
        # A new run has none, and a damaged one can be replaced.
        pass
    write_record(path, corpus)


def read_corpus(folder: Path, config: RunConfig) -> RecordedCorpus:
    """The corpus of a run."""
    return read_record(folder / CORPUS_FILE, config.corpus)


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
    vocabulary = _load_vocabulary(folder)
    model = _load_model(folder, config, len(vocabulary), device)
    return model.to(device).eval(), vocabulary


def _load_vocabulary(folder: Path) -> Vocabulary:
    path = folder / VOCABULARY_FILE
    vocabulary = Vocabulary.load(path)
    if (folder / CORPUS_FILE).exists():
        digest = read_record(folder / CORPUS_FILE, "").header.vocab_sha256
        if vocabulary.sha256 != digest:
            raise ValueError(f"{path} must be the run's vocabulary, of sha256 {digest}")
    return vocabulary


def _load_model(folder: Path, config: RunConfig, vocab_size: int, device: str) -> LanguageModel:
    """Shapes are compared before anything is allocated: a small file may claim a large model."""
    path = folder / MODEL_FILE
    counts, shapes = read_counts(folder, vocab_size), read_shapes(path)
    embeddings = ("backbone.embedding.weight", "backbone.embedding.bands.")
    rows = sum((*shape, 0)[0] for name, shape in shapes.items() if name.startswith(embeddings))
    if rows != vocab_size:
        raise ValueError(
            f"the vocabulary must belong to the weights, got {vocab_size} tokens for {rows} "
            f"embeddings in {path}"
        )
    try:
        with torch.device("meta"):
            like = save_state(build_model(config, vocab_size, counts))
        _check_shapes({name: tuple(tensor.shape) for name, tensor in like.items()}, shapes)
        state = read_tensors(path, device)
        _check_types(like, state)
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} must be weights of {folder / CONFIG_FILE}, got {reason}"
        ) from None
    model = build_model(config, vocab_size, counts)
    load_state(model, state)
    return model


def _check_shapes(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            one, other = (str(shapes.get(name, "none")) for shapes in (wanted, found))
            raise TypeError(f"{name} of shape {other} instead of {one}")


def _check_types(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in wanted.items():
        if found[name].dtype != tensor.dtype:
            raise TypeError(f"{name} in {found[name].dtype} instead of {tensor.dtype}")


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """The best model of a run that nobody trains at the moment, and its corpus."""
    config = read_config(folder)
    if is_in_training(folder):
        raise ValueError(
            f"the run must not be in training, got {folder}: wait for its end, or press Ctrl-C "
            "there, which saves it"
        )
    check_device(device)
    corpus = read_corpus(folder, config)
    model, vocabulary = load(folder, device)
    digest = file_sha256(folder / MODEL_FILE)
    if vocabulary.sha256 != corpus.header.vocab_sha256:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got {corpus.path} with another than "
            f"{folder / VOCABULARY_FILE}"
        )
    return LoadedRun(folder, config, corpus, model, vocabulary, digest)


def is_in_training(folder: Path) -> bool:
    """Whether a process has the run's log open to write."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return False
    with path.open() as file:
        return not lock_file(file.fileno(), is_shared=True)


def config_to_json(config: RunConfig) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION} | dataclasses.asdict(config)


def config_from_json(values: Any) -> RunConfig:
    """The configuration that `config_to_json` made, its values of their types and ranges."""
    if not isinstance(values, Mapping):
        raise ValueError(f"config.json must be an object, got {reprlib.repr(values)}")
    content = dict(values)
    found = (content.pop("format", None), content.pop("version", None))
    if found != (FORMAT, VERSION):
        raise ValueError(
            f"config.json must have format {FORMAT!r} and version {VERSION}, got "
            f"{reprlib.repr(found[0])} and {reprlib.repr(found[1])}"
        )
    config = from_json(RunConfig, content)
    check_values(config)
    return config


def _check_same(folder: Path, config: RunConfig, vocabulary: Vocabulary) -> None:
    check_same_config(folder, read_config(folder), config)
    known = folder / VOCABULARY_FILE
    if Vocabulary.load(known) != vocabulary:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got another than {known}: prepare "
            f"{config.corpus} as it was when the run began"
        )


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
    """Which option differs, as a user would write it."""
    name = next(name for name in old if old[name] != new[name])
    option = f"{prefix}{name.replace('_', '-')}"
    if isinstance(old[name], dict) and isinstance(new[name], dict):
        return _first_difference(old[name], new[name], f"{option}.")
    return f"{option} {old[name]}, not {new[name]}"
