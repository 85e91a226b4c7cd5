"""What is evaluated: a split of the run's corpus, or a text file read as the corpus was."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.text import check_known, read_lines
from highrank.data.vocabulary import EOS
from highrank.files import file_sha256
from highrank.run import LoadedRun


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    """valid, test, or `text` and the name of the file."""
    tokens: NDArray[np.integer[Any]]
    """A file's are after an `<eos>`, so that its first token is predicted, too."""
    sha256: str
    """Of the tokens of the split, or of the file."""
    lines: list[list[str]] | None = None
    """The tokens of each line of a file; None for a split."""
    unknown: Counter[str] = field(default_factory=Counter)
    """How often each token outside the vocabulary stands in a file."""


def find_datasets(
    loaded: LoadedRun, file: Path | None = None, splits: Sequence[str] = ("valid", "test")
) -> list[Dataset]:
    """The splits of the run's corpus or, if it is given, the text file instead."""
    if file is not None:
        return [file_dataset(loaded, file)]
    return [split_dataset(loaded, name) for name in splits]


def split_dataset(loaded: LoadedRun, name: str) -> Dataset:
    sha256 = loaded.corpus.header.splits[name].sha256
    return Dataset(name=name, tokens=loaded.corpus.split(name), sha256=sha256)


def file_dataset(loaded: LoadedRun, path: Path) -> Dataset:
    """Raise ValueError unless the file has a token of the run's vocabulary."""
    lines = read_lines(path, loaded.corpus.header.recipe)
    tokens = list(chain.from_iterable(lines))
    unknown = set(check_known(tokens, loaded.vocabulary, f"the text {path}"))
    return Dataset(
        name=f"text {path.name}",
        tokens=loaded.vocabulary.encode([EOS, *tokens]),
        sha256=file_sha256(path),
        lines=lines,
        unknown=Counter(token for token in tokens if token in unknown),
    )
