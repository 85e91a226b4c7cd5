"""A prepared corpus: a folder with a header, a vocabulary, and three memory-mapped token files."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from highrank.data.cache import NAME, cache_folder, corpus_folder
from highrank.data.catalog import CATALOG
from highrank.data.header import SPLITS, Header
from highrank.data.vocabulary import Vocabulary

HEADER_FILE, VOCABULARY_FILE = "corpus.json", "vocabulary.json"
AGAIN = "prepare it again with `highrank data prepare … --force`"


class Text(Protocol):
    """What training needs of a corpus."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,)."""


@dataclass(frozen=True)
class Corpus:
    """What `load_corpus` returns: everything but the tokens is in memory."""

    path: Path
    header: Header
    vocabulary: Vocabulary

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> str:
        """`word` or `char`."""
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
    vocabulary = _load_vocabulary(path, header)
    itemsize = np.dtype(header.dtype).itemsize
    for name, split in header.splits.items():
        file = token_file(path, name)
        size = file.stat().st_size if file.is_file() else 0
        if size != split.num_tokens * itemsize:
            want = f"{split.num_tokens * itemsize:,} bytes"
            raise ValueError(f"{file} must have {want}, got {size:,}: {AGAIN}")
        if verify and file_sha256(file) != split.sha256:
            raise ValueError(f"{file} must have sha256 {split.sha256}, and has not: {AGAIN}")
    return Corpus(path, header, vocabulary)


def find_corpus(corpus: str | Path, *, cache: Path | None = None) -> Corpus:
    """A prepared corpus by name or by folder; if there is none, the error says how to get it.

    Args:
        corpus: the name it was prepared under, or the folder itself.
        cache: where to look for names instead of the user's cache folder.
    """
    name = str(corpus)
    is_name = NAME.fullmatch(name) is not None
    folders = [*([corpus_folder(name, cache)] if is_name else []), Path(corpus)]
    for folder in folders:
        if (folder / HEADER_FILE).is_file():
            return load_corpus(folder)
    if name in CATALOG:
        raise ValueError(
            f"corpus {name} must be prepared first, and is not in {cache_folder(cache)}: "
            f"run `highrank data prepare {name}`, "
            f"or, if you have its files, `highrank data prepare {name} --from DIR`"
        )
    if Path(corpus).exists():
        raise ValueError(
            f"text must be prepared first, got {corpus}: run `highrank data prepare {corpus}`"
        )
    raise ValueError(
        f"a corpus must be a prepared name, a prepared folder or one of {', '.join(CATALOG)}, "
        f"got {name!r}: see `highrank data list`, or run `highrank data prepare PATH`"
    )


def token_file(path: Path, split: str) -> Path:
    return path / f"{split}.bin"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        raise ValueError(f"{file} must be a corpus header: {error}; {AGAIN}") from error


def _load_vocabulary(path: Path, header: Header) -> Vocabulary:
    file = path / VOCABULARY_FILE
    if not file.is_file():
        raise ValueError(f"{file} is missing: {AGAIN}")
    try:
        vocabulary = Vocabulary.load(file)
    except ValueError as error:
        raise ValueError(f"{error}; {AGAIN}") from error
    if vocabulary.sha256 != header.vocab_sha256:
        raise ValueError(f"{file} must be the vocabulary that {HEADER_FILE} names: {AGAIN}")
    return vocabulary
