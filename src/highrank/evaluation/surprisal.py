"""What a model thought of each word of a text: probability, surprisal, rank, and who said it.

T time, D hidden size, K components, V vocabulary.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank.data.batches import windows
from highrank.data.vocabulary import EOS, Vocabulary
from highrank.heads.mixture import MixtureHead, log_responsibility
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout

# Numbers in a window's table of log-probabilities: 64 MiB.
TABLE_SIZE = 1 << 24
FORMATS = (".csv", ".jsonl")


class Surprisal(NamedTuple):
    """One word of a text, as the model met it."""

    word: str
    """As the text has it."""
    is_known: bool
    """False: outside the vocabulary, so the model read `<unk>`, and all else here is of `<unk>`."""
    probability: float
    bits: float
    """-log2 of the probability."""
    rank: int
    """1 is the likeliest word."""
    component: int | None
    """The softmax most responsible for the word, from 1; None if the contexts were mixed before
    one softmax (MoC)."""
    weights: tuple[float, ...]
    """Of the mixture's components, before the word is known; (1.0,) for one softmax."""


class Place(NamedTuple):
    """Where a word stands."""

    line: int
    """Of the file, from 1."""
    position: int
    """In the line, from 1; the end of the line is its last word."""


@torch.no_grad()
def surprisals(
    model: LanguageModel, vocabulary: Vocabulary, words: Sequence[str], window: int | None = None
) -> Iterator[Surprisal]:
    """Each word of a text, predicted from all words before it; the first from an `<eos>`.

    Args:
        window: words that are read at once; it does not change the numbers.
    """
    if vocabulary.eos is None:
        raise ValueError(f"the vocabulary must have {EOS}, which starts the text, got {vocabulary}")
    if window is None:
        window = max(1, min(1000, TABLE_SIZE // len(vocabulary)))
    with without_dropout(model):
        device = next(model.parameters()).device
        ids = torch.from_numpy(vocabulary.encode([EOS, *words])).to(device)  # (T + 1,)
        state = model.initial_state(1)
        for start, length in windows(len(ids), window):
            hidden, past, state, _ = model.read(ids[start : start + length, None], state)
            target = ids[start + 1 : start + 1 + length]  # (T,)
            met = words[start : start + length]
            assert isinstance(model.head, MixtureHead) and not past
            yield from _surprisals(model.head, hidden[:, 0], target, met, vocabulary)


def _surprisals(
    head: MixtureHead, hidden: Tensor, target: Tensor, words: Sequence[str], vocabulary: Vocabulary
) -> Iterator[Surprisal]:
    log_prob = head.log_prob(hidden)  # (T, V)
    log_p = log_prob.gather(-1, target[:, None])  # (T, 1)
    rank = 1 + (log_prob > log_p).sum(-1)  # (T,)
    weights = head.mixture(hidden).log_weight.exp()  # (T, K)
    responsibility = log_responsibility(head, hidden, target)  # (T, K), or (T, 1) if MoC
    component = responsibility.argmax(-1) + 1  # (T,)
    is_mixed_before = responsibility.shape != weights.shape
    for index, word in enumerate(words):
        value = log_p[index].item()
        yield Surprisal(
            word,
            word in vocabulary,
            math.exp(value),
            abs(value) / math.log(2),
            int(rank[index]),
            None if is_mixed_before else int(component[index]),
            tuple(weights[index].tolist()),
        )


def places(lines: Iterable[Sequence[str]]) -> Iterator[Place]:
    """The place of each word."""
    for line, words in enumerate(lines, 1):
        for position, _ in enumerate(words, 1):
            yield Place(line, position)


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ValueError(f"the words' file must end in {' or '.join(FORMATS)}, got {path}")


def write_surprisals(path: Path, rows: Iterable[tuple[Place, Surprisal]], suffix: str) -> None:
    """Write one row for each word, as they come; `suffix` is one of `FORMATS`.

    What was written of a file that cannot be finished, for an error or Ctrl-C, is removed.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            if suffix == ".jsonl":
                for place, found in rows:
                    row = _row(place, found) | {"weights": list(map(_rounded, found.weights))}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                return
            writer = csv.writer(file)
            for index, (place, found) in enumerate(rows):
                row = _row(place, found)
                if index == 0:
                    numbers = range(1, len(found.weights) + 1)
                    writer.writerow([*row, *(f"weight_{k}" for k in numbers)])
                writer.writerow([*row.values(), *map(_rounded, found.weights)])
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _row(place: Place, found: Surprisal) -> dict[str, Any]:
    return {
        "line": place.line,
        "position": place.position,
        "word": found.word,
        "known": int(found.is_known),
        "probability": _rounded(found.probability),
        "surprisal_bits": _rounded(found.bits),
        "rank": found.rank,
        "component": found.component,
    }


def _rounded(value: float) -> float:
    """To nine digits, which tell all float32 apart."""
    return float(f"{value:.9g}")
