"""Static evaluation, and the stream of scored tokens that the other methods are built on.

Every token but the first of each stream is predicted once, the state carried from window to window.
Static, dynamic, with a cache: each is an iterator of `Scored`, so that they can be stacked.
T time, B streams (the batch size), D hidden size, n tokens of a segment.
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
from highrank.progress import OnProgress


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
    on_progress: OnProgress | None = None,
    *,
    columns: slice = slice(None),
    is_training_split: bool = False,
) -> Evaluation:
    """Mean loss of the tokens; the window's length does not change it, the batch size does.

    Args:
        window: tokens of each stream in one forward pass; about 1,000 of all streams if None.
        columns: the streams that are read, of all.
        is_training_split: whether the tokens are its beginning, so that components leave out what
            they have counted there.
    """
    data = Streams(tokens, batch_size, next(model.parameters()).device, columns)
    total, count, state = 0.0, 0, model.initial_state(data.batch_size)
    reads_position = is_training_split and model.reads_position
    window = max(1, 1000 // batch_size) if window is None else window
    with without_dropout(model):
        for start, length in windows(len(data), window):
            rows, target = slice(start, start + length), data[start + 1 : start + 1 + length]
            position = data.positions(rows) if reads_position else None
            out = model(data[rows], target, state, reduction="sum", position=position)
            state = out.state
            total += out.loss.item()
            count += target.numel()
            if on_progress is not None:
                on_progress((start + length) / (len(data) - 1), "evaluating")
    return Evaluation(total / count, count)


def as_the_original_divides(found: Evaluation, batch_size: int) -> Evaluation:
    """The mean that zihangdai/mos prints for the same loss.

    It divides by all tokens of each stream, though the first is not predicted: on the validation
    split of Penn Treebank, with batch size 10, a perplexity of 58 comes out 0.03 lower.
    """
    num_rows = found.num_tokens // batch_size + 1
    return found._replace(nats=found.nats * (num_rows - 1) / num_rows)


class Scored(NamedTuple):
    """Consecutive tokens of one stream."""

    target: Tensor
    """(n,)."""
    log_prob: Tensor
    """(n,), of each target, before anything was learned from it."""
    hidden: Tensor
    """(n, D), the head's input when it predicted the target."""


class Output(NamedTuple):
    """Result of a model's forward pass over a window."""

    loss: Tensor
    """Mean negative log-likelihood of the targets: dynamic evaluation learns from its gradient."""
    log_prob: Tensor
    """(T, B), of each target."""
    state: Any
    """State that the next window starts from: tensors, in any nest of tuples, lists and dicts."""
    hidden: Tensor | None = None
    """(T, B, D), what a cache compares; without it, all of a cache's pairs count alike."""


Forward = Callable[[Tensor, Tensor, Any], Output]
"""Takes tokens (T, B), targets (T, B) and the state, which is None for the first window."""


def forward_of(model: nn.Module, forward: Forward | None = None) -> Forward:
    """`forward`, or the forward pass of a `LanguageModel`."""
    if forward is not None:
        return forward
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"forward must be given unless the model is a LanguageModel, got {type(model).__name__}"
        )

    def read_window(
        tokens: Tensor, target: Tensor, state: Any, position: Tensor | None = None
    ) -> Output:
        state = model.initial_state(tokens.shape[1]) if state is None else state
        out = model(tokens, target, state, position=position)
        return Output(out.loss, out.output, out.state, out.hidden)

    return read_window


def score(
    model: nn.Module,
    tokens: NDArray[np.integer],
    window: int = 1000,
    forward: Forward | None = None,
) -> Generator[Scored, None, None]:
    """Static: all tokens but the first, as one stream, with everything random off.

    Args:
        window: tokens in one forward pass; it does not change the scores.
        forward: of a model that is no `LanguageModel`.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    forward = forward_of(model, forward)

    def segments() -> Generator[Scored, None, None]:
        state = None
        with without_dropout(model):
            for tokens_in, target in steps(model, tokens, window):
                with torch.no_grad():
                    out = forward(tokens_in, target, state)
                state = out.state
                yield scored(out, target)

    return segments()


def steps(
    model: nn.Module, tokens: NDArray[np.integer], window: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and targets, each (T, 1), of one window after the other, on the model's device.

    Args:
        window: T.
    """
    data = Streams(tokens, 1, next(model.parameters()).device)
    for start, length in windows(len(data), window):
        yield data[start : start + length], data[start + 1 : start + 1 + length]


def scored(out: Output, target: Tensor) -> Scored:
    """The output for a single stream, detached; targets are (T, 1)."""
    log_prob = out.log_prob.detach()[:, 0]  # (n,)
    hidden = log_prob.new_empty(len(target), 0)  # (n, 0)
    if out.hidden is not None:
        hidden = out.hidden.detach()[:, 0]  # (n, D)
    return Scored(target[:, 0], log_prob, hidden)


def summed(
    segments: Iterable[Scored],
    num_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """The mean loss of a stream, which is closed at the end.

    Args:
        num_tokens: how many there will be, for `on_progress`.
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
    """Close a stream on exit, whatever happened: what it has borrowed goes back at once."""
    try:
        yield
    finally:
        close = getattr(segments, "close", None)
        if close is not None:
            close()
