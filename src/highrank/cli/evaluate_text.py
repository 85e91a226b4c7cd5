"""The texts of `highrank evaluate`: splits of the run's corpus, or a file of the user's."""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.cli.output import check_writable
from highrank.cli.run import LoadedRun

if TYPE_CHECKING:
    from highrank.evaluation.static import Evaluation
    from highrank.evaluation.surprisal import Place, Surprisal

SPLITS = {"both": ("valid", "test"), "valid": ("valid",), "test": ("test",)}


class Text(NamedTuple):
    name: str
    tokens: NDArray[np.integer[Any]]
    num_columns: int
    sha256: str


class OwnText(NamedTuple):
    """A file of the user's."""

    text: Text
    """After an `<eos>`, so that its first word is predicted, too."""
    lines: list[list[str]]
    """The tokens of each line of the file."""
    unknown: list[str]
    """Its words outside the vocabulary, each once."""


def corpus_texts(loaded: LoadedRun, split: str, columns: int | None) -> list[Text]:
    """Splits of the corpus, in the columns of the paper if None: 10 for valid, 1 for test."""
    return [
        Text(
            name,
            loaded.corpus.split(name),
            columns or (loaded.config.valid_columns if name == "valid" else 1),
            loaded.corpus.header.splits[name].sha256,
        )
        for name in SPLITS[split]
    ]


def own_text(loaded: LoadedRun, path: Path) -> OwnText:
    from highrank.data.corpus import file_sha256
    from highrank.data.reading import check_known, read_lines
    from highrank.data.vocabulary import EOS

    lines = read_lines(path, loaded.corpus.header.recipe)
    words = list(chain.from_iterable(lines))
    unknown = check_known(words, loaded.vocabulary, f"the text {path}")
    tokens = loaded.vocabulary.encode([EOS, *words])
    return OwnText(Text(f"text {path.name}", tokens, 1, file_sha256(path)), lines, unknown)


def check_per_token(path: Path) -> None:
    from highrank.evaluation.surprisal import check_format

    check_format(path)
    check_writable(path)


def evaluate_words(
    loaded: LoadedRun,
    own: OwnText,
    out: Path | None,
    are_lines_independent: bool,
    on_progress: Callable[[float, str], None],
) -> "Evaluation":
    """Static evaluation word by word; what is known of each goes to the file, if there is one."""
    from highrank.data.atomic import write_atomically
    from highrank.evaluation.static import Evaluation
    from highrank.evaluation.surprisal import places, surprisals, write_surprisals

    texts = own.lines if are_lines_independent else [list(chain.from_iterable(own.lines))]
    found = chain.from_iterable(
        surprisals(loaded.model, loaded.vocabulary, words) for words in texts
    )
    num_tokens, bits = len(own.text.tokens) - 1, 0.0

    def rows() -> "Iterator[tuple[Place, Surprisal]]":
        nonlocal bits
        for index, row in enumerate(zip(places(own.lines), found, strict=True), 1):
            bits += row[1].bits
            on_progress(index / num_tokens, "word by word")
            yield row

    if out is None:
        for _ in rows():
            pass
    else:
        write_atomically(out, lambda new: write_surprisals(new, rows(), out.suffix))
    return Evaluation(bits * math.log(2) / num_tokens, num_tokens)
