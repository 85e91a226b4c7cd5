"""A prepared corpus: a folder with a header, a vocabulary and three memory-mapped token files."""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from highrank.data.token_counts import COUNTS_FILE, read_counts
from highrank.data.tokenizer import TOKENIZERS
from highrank.data.vocabulary import Vocabulary
from highrank.files import from_json, read_json

FORMAT, VERSION = "highrank corpus", 3
HEADER_FILE, VOCABULARY_FILE = "corpus.json", "vocabulary.json"
SPLITS = ("train", "valid", "test")
# Little-endian unsigned integers of two bytes, enough for 65,536 tokens, and of four.
DTYPES = ("<u2", "<u4")
PREPARE_AGAIN = "prepare it again with `highrank data prepare … --force`"

Level = Literal["word", "char"]
# Called with the fraction of the work that is done, and what is being done.
OnProgress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text became tokens."""

    tokenizer: str
    """Key of `highrank.data.tokenizer.TOKENIZERS`."""
    split: str
    """The rule by which text went to train, valid and test, in words."""
    lower: bool = False
    """Whether the text was lower-cased first."""
    vocabulary: Literal["appearance", "frequency"] = "frequency"
    """All tokens of all splits in order of first appearance; or `<unk>`, `<eos>` and the tokens of
    the training split, most frequent first, ties by alphabet."""
    min_count: int = 1
    """Tokens that occur less often in the training split are `<unk>`."""
    max_vocab: int | None = None
    """Largest vocabulary, `<unk>` and `<eos>` included; rarer tokens are `<unk>`."""

    @property
    def level(self) -> Level:
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
    """Of the split's text in UTF-8, line ends as newlines."""
    num_chars: int
    """The same, in characters."""

    @property
    def unknown_fraction(self) -> float:
        return self.num_unknown / self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Header:
    """`corpus.json`: counts, hashes, and how the corpus was made."""

    name: str
    level: Level
    dtype: str
    """Of the token files: one of `DTYPES`."""
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
        """From what `json.loads` gave."""
        values = dict(content) if isinstance(content, Mapping) else {}
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"its format must be {FORMAT!r}")
        if (found := values.pop("version", None)) != VERSION:
            raise ValueError(f"its version must be {VERSION}, got {reprlib.repr(found)}")
        if values.get("dtype") not in DTYPES:
            raise ValueError(
                f"its dtype must be one of {DTYPES}, got {reprlib.repr(values.get('dtype'))}"
            )
        try:
            header = from_json(cls, values)
            header.check()
        except ValueError as error:
            raise ValueError(f"its fields must be those of {FORMAT!r}: {error}") from error
        return header

    def has_same_tokens(self, other: "Header") -> bool:
        """Whether token files and vocabulary are the same, whatever the corpora are called."""
        return self.vocab_sha256 == other.vocab_sha256 and all(
            split.sha256 == other.splits[name].sha256 for name, split in self.splits.items()
        )

    def check(self) -> None:
        """Raise for values that no corpus can have."""
        if sorted(self.splits) != sorted(SPLITS):
            raise ValueError(f"splits must be {', '.join(SPLITS)}, got {sorted(self.splits)}")
        for name, split in self.splits.items():
            if not 0 <= split.num_unknown <= split.num_tokens or split.num_tokens < 1:
                raise ValueError(f"splits.{name} must have tokens, got {split}")
        if self.recipe.tokenizer not in TOKENIZERS:
            known, found = ", ".join(TOKENIZERS), reprlib.repr(self.recipe.tokenizer)
            raise ValueError(f"recipe.tokenizer must be one of {known}, got {found}")
        if not self.sources:
            raise ValueError("sources must name a file, got none")


class CorpusLike(Protocol):
    """What training needs of a corpus."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def token_counts(self) -> Sequence[int]:
        """How often the training split has each token."""

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,)."""


@dataclass(frozen=True)
class Corpus:
    """What `load_corpus` returns: everything but the token ids is in memory."""

    path: Path
    header: Header
    vocabulary: Vocabulary
    _sound: set[str] = field(default_factory=set, compare=False, repr=False)
    """The splits whose files were found to be as they were written."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> Level:
        return self.header.level

    @cached_property
    def token_counts(self) -> list[int]:
        """How often the training split has each token."""
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
        if name not in self._sound:
            if sha256(tokens.data).hexdigest() != split.sha256:
                raise ValueError(f"{file} must have sha256 {split.sha256}: {PREPARE_AGAIN}")
            if (largest := int(tokens.max())) >= len(self.vocabulary):
                size = len(self.vocabulary)
                raise ValueError(f"{file} must have ids below {size}, got {largest}")
            self._sound.add(name)
        return tokens


def split_sha256(corpus: CorpusLike, name: str) -> str:
    """Of the token ids, without hashing a prepared corpus twice."""
    tokens = corpus.split(name)
    if isinstance(corpus, Corpus):
        return corpus.header.splits[name].sha256
    return sha256(np.ascontiguousarray(tokens).data).hexdigest()


def load_corpus(path: str | Path, *, verify: bool = False) -> Corpus:
    """The corpus in a folder that `highrank data prepare` made.

    Args:
        path: the folder; `find_corpus` also takes names.
        verify: hash all token files now, not each when it is first used; their sizes are always
            checked.
    """
    path = Path(path)
    header = load_header(path)
    vocabulary = _load_vocabulary(path / VOCABULARY_FILE, header)
    for name, split in header.splits.items():
        file = token_file(path, name)
        size = file.stat().st_size if file.is_file() else 0
        want = split.num_tokens * np.dtype(header.dtype).itemsize
        if size != want:
            raise ValueError(f"{file} must have {want:,} bytes, got {size:,}: {PREPARE_AGAIN}")
    corpus = Corpus(path, header, vocabulary)
    for name in SPLITS if verify else ():
        corpus.split(name)
    return corpus


def token_file(path: Path, split: str) -> Path:
    return path / f"{split}.bin"


def load_header(path: Path) -> Header:
    """What a prepared corpus says of itself."""
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
