"""A prepared corpus: a folder with a header, a vocabulary and three memory-mapped token files."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from highrank.data.subwords import Subwords, is_subword
from highrank.data.tokenizer import TOKENIZERS
from highrank.data.vocabulary import Vocabulary
from highrank.files import (
    checked,
    file_sha256,
    from_json,
    read_json,
    without_format,
    write_atomically,
)

FORMAT, VERSION = "highrank corpus", 3
HEADER_FILE, VOCABULARY_FILE, COUNTS_FILE = "corpus.json", "vocabulary.json", "token_counts.json"
SPLITS = ("train", "valid", "test")
PREPARE_AGAIN = "prepare it again with `highrank data prepare … --force`"

Level = Literal["word", "char", "subword"]
# Little-endian unsigned integers of two bytes, enough for 65,536 tokens, and of four.
TokenType = Literal["<u2", "<u4"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text became tokens."""

    tokenizer: str
    """Key of `highrank.data.tokenizer.TOKENIZERS`, or `bpe:N` or `unigram:N`."""
    split: str
    """The rule by which text went to train, valid and test, in words."""
    lower: bool = False
    """Whether the text was lower-cased first."""
    vocabulary: Literal["appearance", "frequency"] = "frequency"
    """All tokens of all splits in order of first appearance; or `<unk>`, `<eos>` and the tokens of
    the training split, most frequent first, ties by alphabet. Subwords have their own order."""
    min_count: int = 1
    """Tokens that occur less often in the training split are `<unk>`."""
    max_vocab: int | None = None
    """Largest vocabulary, `<unk>` and `<eos>` included; rarer tokens are `<unk>`."""
    independent_lines: bool = False
    """Each line is alone: it is read after an `<eos>`, and nothing is known of the lines before."""
    subwords: Subwords | None = field(default=None, compare=False, repr=False)
    """What `bpe:N` or `unigram:N` has learned from the training split."""

    @property
    def level(self) -> Level:
        if is_subword(self.tokenizer):
            return "subword"
        return "char" if self.tokenizer == "characters" else "word"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that the corpus was made of."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """A file of token ids."""

    num_tokens: int
    """With `<eos>` and `<unk>`."""
    num_unknown: int
    """How many of them are `<unk>`."""
    sha256: str
    num_bytes: int
    """Size of the split's text in UTF-8, line ends as newlines."""
    num_chars: int
    """The same in characters."""

    def bits_per_byte(self, bits: float) -> float:
        """Bits of all tokens over the size of the text, from the mean bits of a token."""
        return bits * self.num_tokens / self.num_bytes

    @property
    def unknown_fraction(self) -> float:
        return self.num_unknown / self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Header:
    """`corpus.json`: counts, hashes, and how the corpus was made."""

    name: str
    level: Level
    dtype: TokenType
    """Type of the token files."""
    splits: dict[str, Split]
    vocab_size: int
    vocab_sha256: str
    sources: tuple[Source, ...]
    recipe: Recipe
    made_by: str
    """Name and version of the program."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION} | asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """The header that `json.loads` read; raise for values that no corpus can have."""
        header = from_json(cls, without_format(content, FORMAT, VERSION))
        if sorted(header.splits) != sorted(SPLITS):
            raise ValueError(f"splits must be {', '.join(SPLITS)}, got {sorted(header.splits)}")
        for name, split in header.splits.items():
            if not 0 <= split.num_unknown <= split.num_tokens or split.num_tokens < 1:
                raise ValueError(f"splits.{name} must have tokens, got {split}")
        recipe = header.recipe
        if recipe.tokenizer not in TOKENIZERS and not is_subword(recipe.tokenizer):
            known, found = ", ".join(TOKENIZERS), reprlib.repr(recipe.tokenizer)
            raise ValueError(f"recipe.tokenizer must be one of {known}, bpe:N, got {found}")
        if is_subword(recipe.tokenizer) != (recipe.subwords is not None):
            raise ValueError(
                f"recipe.subwords must be there for bpe:N only, got {recipe.tokenizer}"
            )
        if not header.sources:
            raise ValueError("sources must name a file, got none")
        return header

    def has_same_tokens(self, other: "Header") -> bool:
        """Whether token files and vocabulary are the same, whatever the corpora are called."""
        return self.vocab_sha256 == other.vocab_sha256 and all(
            split.sha256 == other.splits[name].sha256 for name, split in self.splits.items()
        )


class CorpusLike(Protocol):
    """The part of a corpus that training needs."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def token_counts(self) -> Sequence[int]:
        """How often the training split has each token."""

    @property
    def sentence_end(self) -> int | None:
        """Id of `<eos>` if every line is alone, None if the text is read as a whole."""

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,)."""


class MemoryCorpus(NamedTuple):
    """A corpus in memory."""

    vocabulary: Vocabulary
    tokens: Mapping[str, NDArray[np.integer[Any]]]
    """Token ids of each split, (N,)."""
    floor: float | None = None
    """Loss of an exact language itself on the test tokens, in nats per token; None for a text."""
    sentence_end: int | None = None
    """Id of `<eos>` if every line is alone."""

    @property
    def token_counts(self) -> list[int]:
        counts = np.bincount(self.tokens["train"], minlength=len(self.vocabulary))
        return [int(count) for count in counts]

    def split(self, name: str) -> NDArray[np.integer[Any]]:
        return self.tokens[name]


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk: everything but the token ids is in memory."""

    path: Path
    header: Header
    vocabulary: Vocabulary
    _verified: set[str] = field(default_factory=set, compare=False, repr=False)
    """The splits whose hash was compared."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> Level:
        return self.header.level

    @property
    def sentence_end(self) -> int | None:
        return self.vocabulary.eos if self.header.recipe.independent_lines else None

    @cached_property
    def token_counts(self) -> list[int]:
        counts = read_counts(self.path, len(self.vocabulary))
        if (found := sum(counts)) != (wanted := self.header.splits["train"].num_tokens):
            file = self.path / COUNTS_FILE
            raise ValueError(f"{file} must have {wanted:,} tokens, got {found:,}: {PREPARE_AGAIN}")
        return counts

    def split(self, name: str) -> "np.memmap[Any, np.dtype[Any]]":
        """The token ids of train, valid or test, (N,), uint16 or uint32, mapped read-only.

        Its file is hashed the first time, about a second for 1 GB.
        """
        if name not in SPLITS:
            raise ValueError(f"a split must be one of {', '.join(SPLITS)}, got {name!r}")
        split, file = self.header.splits[name], token_file(self.path, name)
        tokens = np.memmap(file, self.header.dtype, "r", shape=(split.num_tokens,))
        if name not in self._verified:
            if file_sha256(file) != split.sha256:
                raise ValueError(f"{file} must have sha256 {split.sha256}: {PREPARE_AGAIN}")
            if (largest := _largest(file, self.header.dtype)) >= len(self.vocabulary):
                size = len(self.vocabulary)
                raise ValueError(f"{file} must have ids below {size}, got {largest}")
            self._verified.add(name)
        return tokens


def _largest(file: Path, dtype: TokenType) -> int:
    """The largest id of a token file, which is read in blocks, and not mapped into memory."""
    largest = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 24):
            largest = max(largest, int(np.frombuffer(block, dtype).max()))
    return largest


def split_sha256(corpus: CorpusLike, name: str) -> str:
    """Hash of a split's token ids, without hashing a prepared corpus twice."""
    tokens = corpus.split(name)
    if isinstance(corpus, Corpus):
        return corpus.header.splits[name].sha256
    return sha256(np.ascontiguousarray(tokens).data).hexdigest()


def load_corpus(path: str | Path) -> Corpus:
    """The corpus in a folder that `highrank data prepare` made; `find_corpus` also takes names."""
    path = Path(path)
    header = load_header(path)
    vocabulary = _load_vocabulary(path / VOCABULARY_FILE, header)
    for name, split in header.splits.items():
        file = token_file(path, name)
        size = file.stat().st_size if file.is_file() else 0
        want = split.num_tokens * np.dtype(header.dtype).itemsize
        if size != want:
            raise ValueError(f"{file} must have {want:,} bytes, got {size:,}: {PREPARE_AGAIN}")
    return Corpus(path, header, vocabulary)


def token_file(path: Path, split: str) -> Path:
    return path / f"{split}.bin"


def load_header(path: Path) -> Header:
    """The header of a prepared corpus."""
    file = path / HEADER_FILE
    if not path.is_dir():
        raise ValueError(f"no prepared corpus is at {path}: run `highrank data prepare`")
    if not file.is_file():
        raise ValueError(
            f"{path} is not a prepared corpus, it has no {HEADER_FILE}: "
            f"if it holds text, run `highrank data prepare {path}`"
        )
    content = read_json(file)
    try:
        return Header.from_json(content)
    except ValueError as error:
        raise ValueError(f"{file} must be a corpus header: {error}; {PREPARE_AGAIN}") from error


def _load_vocabulary(file: Path, header: Header) -> Vocabulary:
    try:
        vocabulary = Vocabulary.load(file)
    except ValueError as error:
        raise ValueError(f"{error}; {PREPARE_AGAIN}") from error
    if (vocabulary.sha256, len(vocabulary)) != (header.vocab_sha256, header.vocab_size):
        raise ValueError(f"{file} must be the vocabulary that {HEADER_FILE} names: {PREPARE_AGAIN}")
    return vocabulary


def write_counts(folder: Path, counts: Sequence[int]) -> None:
    """Keep how often the training split has each token, with a corpus or with a run on it."""
    text = json.dumps(list(counts))
    write_atomically(folder / COUNTS_FILE, lambda temporary: temporary.write_text(text))


def read_counts(folder: Path, vocab_size: int) -> list[int]:
    """The counts in a folder, one for each token of the vocabulary."""
    path = folder / COUNTS_FILE
    content = read_json(path)
    try:
        counts = list(checked(tuple[int, ...], content, "the content"))
        if len(counts) != vocab_size or min(counts) < 0:
            found = f"{len(counts)}: {reprlib.repr(counts)}"
            raise ValueError(f"it must have {vocab_size} numbers of at least 0, got {found}")
    except ValueError as error:
        raise ValueError(f"{path} must be a list of counts: {error}") from None
    return counts
