"""Subwords: tokenizers that are learned from a training split, with the package `tokenizers`.

- `bpe:N`: byte-pair encoding (Sennrich et al. 2016) with N tokens.
- `unigram:N`: the unigram model of Kudo (2018).

Both work on bytes, written as characters as GPT-2 does (a space is Ġ): there is no `<unk>`, and
nothing of a text is lost. A newline, which ends a line and is a token of its own, is `<eos>`.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from highrank.data.vocabulary import EOS
from highrank.environment import install_hint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = re.compile(r"(bpe|unigram):([1-9][0-9]{0,8})")
NEWLINE = "Ċ"
# All bytes and some more.
LEAST_SIZE = 260


@dataclass(frozen=True, kw_only=True)
class Subwords:
    """What a text taught: all that a tokenizer needs."""

    tokens: tuple[str, ...]
    """By id, with the newline's sign."""
    merges: tuple[str, ...] = ()
    """Of `bpe`: pairs of tokens with a space between them, the first merged first."""
    scores: tuple[float, ...] = ()
    """Of `unigram`: the log-probability of each token, to ten places, which survive any JSON."""

    def __post_init__(self) -> None:
        """Raise for what no tokenizer can be: it may come from a damaged file."""
        tokens, signs = set(self.tokens), set(_bytes_of_signs())
        if len(tokens) < len(self.tokens) or not signs <= tokens:
            raise ValueError("subwords.tokens must have every byte, and every token once")
        if any(not token or set(token) - signs for token in tokens):
            raise ValueError("subwords.tokens must be signs of bytes")
        pairs = [pair.split(" ") for pair in self.merges]
        if any(len(pair) != 2 or not {*pair, "".join(pair)} <= tokens for pair in pairs):
            raise ValueError("subwords.merges must be pairs of tokens that make a token")
        if self.scores and (self.merges or len(self.scores) != len(self.tokens)):
            raise ValueError("subwords.scores must be one for each token, without merges")

    @property
    def vocabulary(self) -> list[str]:
        """The tokens as a corpus has them, with `<eos>`."""
        return [EOS if token == NEWLINE else token for token in self.tokens]


def is_subword(name: str) -> bool:
    """Whether this is the name of such a tokenizer."""
    return NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raise unless it is `bpe:N` or `unigram:N` with a possible N."""
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"tokenizer must be bpe:N or unigram:N, such as bpe:4000, got {name!r}")
    if int(found[2]) < LEAST_SIZE:
        raise ValueError(f"tokenizer must have at least {LEAST_SIZE} tokens, got {name!r}")


def learn(name: str, lines: Iterable[str]) -> Subwords:
    """Learn a tokenizer from lines without their newlines.

    Args:
        name: `bpe:N` or `unigram:N`; a short text may give fewer tokens.
    """
    check_name(name)
    library = _library()
    kind, size = name.split(":")
    options: dict[str, Any] = {
        "vocab_size": int(size),
        "initial_alphabet": library.pre_tokenizers.ByteLevel.alphabet(),
        "show_progress": False,
    }
    if kind == "bpe":
        backend = library.Tokenizer(library.models.BPE())
        trainer = library.trainers.BpeTrainer(**options)
    else:
        backend = library.Tokenizer(library.models.Unigram())
        trainer = library.trainers.UnigramTrainer(**options)
    backend.pre_tokenizer = pre_tokenizer()
    backend.train_from_iterator(lines, trainer)
    return learned_by(backend)


def learned_by(backend: "Tokenizer") -> Subwords:
    """What a tokenizer of `make_backend` or `learn` knows."""
    model = json.loads(backend.to_str())["model"]
    if model["type"] == "BPE":
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        return Subwords(tokens=tuple(tokens), merges=tuple(map(" ".join, model["merges"])))
    pieces = model["vocab"]
    return Subwords(
        tokens=tuple(token for token, _ in pieces),
        scores=tuple(round(score, 10) for _, score in pieces),
    )


def make_backend(subwords: Subwords) -> "Tokenizer":
    """The tokenizer of `tokenizers` with these ids; texts may have newlines."""
    library = _library()
    if subwords.scores:
        model = library.models.Unigram(list(zip(subwords.tokens, subwords.scores, strict=True)))
    else:
        ids = {token: i for i, token in enumerate(subwords.tokens)}
        merges = [tuple(pair.split(" ")) for pair in subwords.merges]
        model = library.models.BPE(vocab=ids, merges=merges)
    backend: Tokenizer = library.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer()
    return backend


def pre_tokenizer() -> Any:
    """Words with the space before them, numbers, signs; a newline stands alone."""
    library = _library().pre_tokenizers
    return library.Sequence(
        [library.Split("\n", "isolated"), library.ByteLevel(add_prefix_space=False)]
    )


@lru_cache(maxsize=8)
def tokenizer(subwords: Subwords) -> Callable[[str], list[str]]:
    """A function from a line to its tokens, `<eos>` included."""
    backend = make_backend(subwords)
    return lambda line: [*backend.encode(line).tokens, EOS]


def text_of(tokens: Iterable[str]) -> str:
    """The text of tokens; bytes that are no character, at its end or elsewhere, are left out."""
    signs = _bytes_of_signs()
    found = (b"\n" if token == EOS else bytes(signs[sign] for sign in token) for token in tokens)
    return b"".join(found).decode(errors="ignore")


@cache
def _bytes_of_signs() -> dict[str, int]:
    """The byte that each sign of GPT-2's alphabet stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    shown += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(256) if byte not in shown]
    signs = {chr(byte): byte for byte in shown}
    return signs | {chr(256 + i): byte for i, byte in enumerate(hidden)}


@cache
def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise ValueError(f"subwords need the package tokenizers: {install_hint('hf')}") from None
    return tokenizers
