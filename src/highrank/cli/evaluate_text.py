"""The texts of `highrank evaluate`: splits of the run's corpus, or a file of the user's."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from highrank.run import LoadedRun

if TYPE_CHECKING:
    from highrank.cli.evaluate import Options
    from highrank.evaluation.static import Evaluation
    from highrank.evaluation.surprisal import Place, Surprisal

SPLITS = {"both": ("valid", "test"), "valid": ("valid",), "test": ("test",)}


@dataclass(frozen=True, kw_only=True)
class Text:
    name: str
    tokens: NDArray[np.integer[Any]]
    """A file's are after an `<eos>`, so that its first word is predicted, too."""
    batch_size: int
    sha256: str
    lines: list[list[str]] | None = None
    """The tokens of each line of a file; None for a split."""
    unknown: Counter[str] = field(default_factory=Counter)
    """How often each word outside the vocabulary stands in a file."""


def find_texts(loaded: LoadedRun, options: "Options") -> list[Text]:
    if options.text is not None:
        return [_own_text(loaded, options.text)]
    return [_split(loaded, name, options) for name in SPLITS[options.split]]


def _split(loaded: LoadedRun, name: str, options: "Options") -> Text:
    """In the columns of the paper unless told otherwise: 10 for valid, 1 for test."""
    columns = options.columns or (loaded.config.valid_batch_size if name == "valid" else 1)
    return Text(
        name=name,
        tokens=loaded.corpus.split(name),
        batch_size=columns if options.is_static else 1,
        sha256=loaded.corpus.header.splits[name].sha256,
    )


def _own_text(loaded: LoadedRun, path: Path) -> Text:
    from highrank.data.text import check_known, read_lines
    from highrank.data.vocabulary import EOS
    from highrank.files import file_sha256

    lines = read_lines(path, loaded.corpus.header.recipe)
    words = list(chain.from_iterable(lines))
    unknown = set(check_known(words, loaded.vocabulary, f"the text {path}"))
    return Text(
        name=f"text {path.name}",
        tokens=loaded.vocabulary.encode([EOS, *words]),
        batch_size=1,
        sha256=file_sha256(path),
        lines=lines,
        unknown=Counter(word for word in words if word in unknown),
    )


def evaluate_words(
    loaded: LoadedRun,
    lines: list[list[str]],
    options: "Options",
    on_progress: Callable[[float, str], None],
) -> "Evaluation":
    """Static evaluation word by word; what is known of each goes to --per-token, if given."""
    from highrank.evaluation.static import Evaluation
    from highrank.evaluation.surprisal import places, surprisals, write_surprisals
    from highrank.files import write_atomically

    texts = lines if options.independent_lines else [list(chain.from_iterable(lines))]
    found = chain.from_iterable(
        surprisals(loaded.model, loaded.vocabulary, words) for words in texts
    )
    num_tokens, bits = sum(map(len, lines)), 0.0

    def rows() -> "Iterator[tuple[Place, Surprisal]]":
        nonlocal bits
        for index, row in enumerate(zip(places(lines), found, strict=True), 1):
            bits += row[1].bits
            on_progress(index / num_tokens, "word by word")
            yield row

    out = options.per_token
    if out is None:
        for _ in rows():
            pass
    else:
        write_atomically(out, lambda new: write_surprisals(new, rows(), out.suffix))
    return Evaluation(bits * math.log(2) / num_tokens, num_tokens)
