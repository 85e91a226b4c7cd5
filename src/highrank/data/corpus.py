"""A prepared corpus: a folder with a header, a vocabulary and three memory-mapped token files."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from highrank.data.vocabulary import Vocabulary
from highrank.files import file_sha256

FORMAT, VERSION = "highrank corpus", 1
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
    def from_json(cls, text: str) -> Self:
        content: dict[str, Any] = json.loads(text)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"its format must be {FORMAT!r}")
        if (found := content.pop("version", None)) != VERSION:
            raise ValueError(f"its version must be {VERSION}, got {found}")
        if content.get("dtype") not in DTYPES:
            raise ValueError(f"its dtype must be one of {DTYPES}, got {content.get('dtype')}")
        try:
            content["splits"] = {name: Split(**content["splits"][name]) for name in SPLITS}
            content["sources"] = tuple(Source(**source) for source in content["sources"])
            content["recipe"] = Recipe(**content["recipe"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"its fields must be those of {FORMAT!r}: {error}") from error


class CorpusLike(Protocol):
    """What training needs of a corpus."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,)."""


@dataclass(frozen=True)
class Corpus:
    """What `load_corpus` returns: everything but the token ids is in memory."""

    path: Path
    header: Header
    vocabulary: Vocabulary

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> Level:
        return self.header.level

    def split(self, name: str) -> "np.memmap[Any, np.dtype[Any]]":
        """The token ids of train, valid or test, (N,), uint16 or uint32, mapped read-only."""
        if name not in SPLITS:
            raise ValueError(f"a split must be one of {', '.join(SPLITS)}, got {name!r}")
        length = self.header.splits[name].num_tokens
        return np.memmap(token_file(self.path, name), self.header.dtype, "r", shape=(length,))


def load_corpus(path: str | Path, *, verify: bool = False) -> Corpus:
    """The corpus in a folder that `highrank data prepare` made.

    Args:
        path: the folder; `find_corpus` also takes names.
        verify: also hash the token files, about a second for 1 GB; their sizes are always checked.
    """
    path = Path(path)
    header = _load_header(path)
    vocabulary = _load_vocabulary(path / VOCABULARY_FILE, header)
    for name, split in header.splits.items():
        file = token_file(path, name)
        size = file.stat().st_size if file.is_file() else 0
        want = split.num_tokens * np.dtype(header.dtype).itemsize
        if size != want:
            raise ValueError(f"{file} must have {want:,} bytes, got {size:,}: {PREPARE_AGAIN}")
        if verify and file_sha256(file) != split.sha256:
            raise ValueError(f"{file} must have sha256 {split.sha256}: {PREPARE_AGAIN}")
    return Corpus(path, header, vocabulary)


def token_file(path: Path, split: str) -> Path:
    return path / f"{split}.bin"


def _load_header(path: Path) -> Header:
    file = path / HEADER_FILE
    if not path.is_dir():
        raise ValueError(f"no prepared corpus is at {path}: run `highrank data prepare`")
    if not file.is_file():
        raise ValueError(
            f"{path} is not a prepared corpus, it has no {HEADER_FILE}: "
            f"if it holds text, run `highrank data prepare {path}`"
        )
    try:
        return Header.from_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be a corpus header: {error}; {PREPARE_AGAIN}") from error


def _load_vocabulary(file: Path, header: Header) -> Vocabulary:
    try:
        vocabulary = Vocabulary.load(file)
    except FileNotFoundError:
        raise ValueError(f"{file} is missing: {PREPARE_AGAIN}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {PREPARE_AGAIN}") from error
    if vocabulary.sha256 != header.vocab_sha256:
        raise ValueError(f"{file} must be the vocabulary that {HEADER_FILE} names: {PREPARE_AGAIN}")
    return vocabulary
