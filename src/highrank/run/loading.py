"""The model of a run: its shapes are checked before anything is allocated."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from highrank.build import build_model
from highrank.config import RunConfig
from highrank.data.corpus import read_counts
from highrank.data.vocabulary import Vocabulary
from highrank.environment import check_device
from highrank.files import file_sha256
from highrank.heads.bases.component import components_of
from highrank.models.language_model import LanguageModel
from highrank.models.tensors import read_shapes, read_tensors
from highrank.models.weights import load_state, save_state
from highrank.run.configuration import CONFIG_FILE, read_config
from highrank.run.corpus import RecordedCorpus, read_record
from highrank.run.folder import (
    CORPUS_FILE,
    MODEL_FILE,
    VOCABULARY_FILE,
    is_in_training,
    read_corpus,
)


class LoadedRun(NamedTuple):
    folder: Path
    config: RunConfig
    corpus: RecordedCorpus
    """Its header is known; its tokens are looked for when they are needed."""
    model: LanguageModel
    vocabulary: Vocabulary
    sha256: str
    """Hash of model.safetensors."""


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
    rows = sum(shape[0] for name, shape in shapes.items() if shape and name.startswith(embeddings))
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
    for component in components_of(model):
        component.load_data(folder)
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
