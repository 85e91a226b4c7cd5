"""A trained run as commands meet it: found, checked, loaded, with the corpus it was trained on."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from highrank.config import RunConfig
    from highrank.data.corpus import Corpus
    from highrank.data.vocabulary import Vocabulary
    from highrank.models.language_model import LanguageModel


class LoadedRun(NamedTuple):
    folder: Path
    config: "RunConfig"
    corpus: "Corpus"
    model: "LanguageModel"
    vocabulary: "Vocabulary"
    sha256: str
    """Of model.safetensors."""


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """The best model of a run that nobody trains at the moment."""
    from highrank.build import load
    from highrank.data.corpus import file_sha256, find_corpus
    from highrank.models.device import check_device
    from highrank.training.directory import read_config
    from highrank.training.log import is_in_training

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
