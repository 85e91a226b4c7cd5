"""Static evaluation: every token but the first of each column is predicted once, state carried.

T time, B columns.

A text read as one column and scored, as a stream: what every kind of evaluation yields.

Static, dynamic, with a cache: each is an iterator of `Scored`, so that they can be stacked.
T time, B columns, D hidden size, n tokens of a segment.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.data.batches import Streams, windows
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout


class Evaluation(NamedTuple):
    nats: float
    """Mean negative log-likelihood of a predicted token."""
    num_tokens: int
    """How many were predicted."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))

    @property
    def bits(self) -> float:
        """Mean bits of a predicted token."""
        return self.nats / math.log(2)


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    tokens: NDArray[np.integer],
    batch_size: int = 10,
    window: int | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> Evaluation:
    """Mean loss of the text; the window's length does not change it, the number of columns does.

    Args:
        window: tokens of each column that are read at once; about 1,000 of all columns if None.
    """
    with without_dropout(model):
        device = next(model.parameters()).device
        data = Streams(tokens, batch_size, device)
        window = max(1, 1000 // batch_size) if window is None else window
        state = model.initial_state(batch_size)
        total = 0.0
        for start, length in windows(len(data), window):
            words, target = data[start : start + length], data[start + 1 : start + 1 + length]
            loss, _, _, _, state = model(words, target, state, reduction="sum")
            total += loss.item()
            if on_progress is not None:
                on_progress((start + length) / (len(data) - 1), "evaluating")
        num_tokens = (len(data) - 1) * batch_size
        return Evaluation(total / num_tokens, num_tokens)


def as_the_original_divides(found: Evaluation, batch_size: int) -> Evaluation:
    """The mean that zihangdai/mos prints for the same loss.

    It divides by all tokens of each column, though the first is not predicted: on the validation
    text of Penn Treebank, in 10 columns, a perplexity of 58 comes out 0.03 lower.
    """
    num_rows = found.num_tokens // batch_size + 1
    return found._replace(nats=found.nats * (num_rows - 1) / num_rows)


WINDOW = 1000


class Scored(NamedTuple):
    """Consecutive tokens of a text."""

    target: Tensor
    """(n,)."""
    log_prob: Tensor
    """(n,), of each target, before anything was learned from it."""
    hidden: Tensor
    """(n, D), what the head saw when it predicted the target."""


class Reading(NamedTuple):
    """What a model says of a window."""

    loss: Tensor
    """Mean negative log-likelihood of the targets: dynamic evaluation learns from its gradient."""
    log_prob: Tensor
    """(T, B), of each target."""
    state: Any
    """What the next window goes on from: tensors, in any nest of tuples, lists and dicts."""
    hidden: Tensor | None = None
    """(T, B, D), what a cache compares; without it, all of a cache's pairs count alike."""


Read = Callable[[Tensor, Tensor, Any], Reading]
"""Reads words (T, B) on from a state, None at the beginning, and scores the targets (T, B)."""


def reader(model: nn.Module, read: Read | None = None) -> Read:
    """How a model reads: `read`, or for a `LanguageModel` its own forward pass."""
    if read is not None:
        return read
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"read must be given unless the model is a LanguageModel, got {type(model).__name__}"
        )

    def read_with_model(words: Tensor, target: Tensor, state: Any) -> Reading:
        state = model.initial_state(words.shape[1]) if state is None else state
        out = model(words, target, state)
        return Reading(out.loss, out.output, out.state, out.hidden)

    return read_with_model


def score(
    model: nn.Module,
    tokens: NDArray[np.integer],
    window: int | None = None,
    read: Read | None = None,
) -> Generator[Scored, None, None]:
    """Static: all tokens but the first, with everything random off and the state carried.

    Args:
        window: tokens that are read at once, 1,000 if None; it does not change the scores.
        read: how to read with a model that is no `LanguageModel`.
    """
    window = WINDOW if window is None else window
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    return _score(model, tokens, window, reader(model, read))


def _score(
    model: nn.Module, tokens: NDArray[np.integer], window: int, read: Read
) -> Generator[Scored, None, None]:
    state = None
    with without_dropout(model):
        for words, target in steps(model, tokens, window):
            with torch.no_grad():
                reading = read(words, target, state)
            state = reading.state
            yield scored(reading, target)


def steps(
    model: nn.Module, tokens: NDArray[np.integer], window: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Words and targets, each (T, 1), of one window after the other, where the model is."""
    data = Streams(tokens, 1, next(model.parameters()).device)
    for start, length in windows(len(data), window):
        yield data[start : start + length], data[start + 1 : start + 1 + length]


def scored(reading: Reading, target: Tensor) -> Scored:
    """The reading of a single column, detached; targets are (T, 1)."""
    log_prob = reading.log_prob.detach()[:, 0]  # (n,)
    hidden = log_prob.new_empty(len(target), 0)  # (n, 0)
    if reading.hidden is not None:
        hidden = reading.hidden.detach()[:, 0]  # (n, D)
    return Scored(target[:, 0], log_prob, hidden)


def summed(
    segments: Iterable[Scored],
    num_tokens: int | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> Evaluation:
    """The mean loss of a stream, which is closed at the end.

    Args:
        num_tokens: how many there will be, for `on_progress`.
        on_progress: called with the share of the work done and what is being done.
    """
    total, count = 0.0, 0
    with closed(segments):
        for segment in segments:
            total -= segment.log_prob.cpu().sum(dtype=torch.float64).item()
            count += len(segment.target)
            if on_progress is not None and num_tokens is not None:
                on_progress(count / num_tokens, "evaluating")
    if count == 0:
        raise ValueError("segments must hold at least one token, got none")
    return Evaluation(total / count, count)


@contextmanager
def closed(segments: Iterable[Scored]) -> Iterator[None]:
    """Close a stream on exit, whatever happened inside: what it has borrowed goes back at once."""
    try:
        yield
    finally:
        close = getattr(segments, "close", None)
        if close is not None:
            close()
