"""Static evaluation, and the stream of scored tokens that the other methods are built on.

Every token but the first of each stream is predicted once, the state carried from window to window;
where lines are alone, every token of every line, from an initial state.
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

from highrank.data.batches import Batch, Streams, windows
from highrank.data.sentences import sentence_batches
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.progress import OnProgress

# Of all streams together, in one forward pass.
WINDOW_TOKENS = 1000


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
    sentence_end: int | None = None,
) -> Evaluation:
    """Mean loss of the tokens; the window's length does not change it, the batch size does.

    Args:
        window: tokens of each stream in one forward pass; about 1,000 of all streams if None.
        columns: the streams that are read, of all; the same of each batch of lines that are alone.
        is_training_split: whether the tokens are its beginning, so that components leave out what
            they have counted there.
        sentence_end: token id of `<eos>` if every line is alone: all tokens are then predicted, and
            the batch size does not change the loss either. None reads the text as streams.
    """
    total, count, state = 0.0, 0, None
    reads_position = is_training_split and model.reads_position
    device = next(model.parameters()).device
    with without_dropout(model):
        for batch in _windows(tokens, batch_size, window, sentence_end, device, columns):
            if not batch.carries:
                state = model.initial_state(batch.target.shape[1])
            position = batch.position if reads_position else None
            out = model(batch.inputs, batch.target, state, reduction="sum", position=position)
            state = out.state
            total += out.loss.item()
            count += batch.num_targets
            if on_progress is not None:
                num_tokens = num_predicted(len(tokens), batch_size, sentence_end, columns)
                on_progress(min(1.0, count / num_tokens), "evaluating")
    # A process may have none of few lines.
    return Evaluation(total / max(1, count), count)


def _windows(
    tokens: NDArray[np.integer],
    batch_size: int,
    window: int | None,
    sentence_end: int | None,
    device: torch.device,
    columns: slice,
) -> Iterator[Batch]:
    """What one forward pass after the other reads; a sentence may be longer than a window."""
    if sentence_end is not None:
        size = WINDOW_TOKENS * (columns.step or 1)
        for batch in sentence_batches(tokens, sentence_end, size, columns):
            num_rows, num_columns = batch.target.shape
            for start, length in windows(num_rows + 1, window or _window(num_columns)):
                yield batch.rows(slice(start, start + length)).to(device)
        return
    data = Streams(tokens, batch_size, device, columns)
    for start, length in windows(len(data), window or _window(batch_size)):
        rows, target = slice(start, start + length), data[start + 1 : start + 1 + length]
        yield Batch(data[rows], target, target.numel(), start > 0, position=data.positions(rows))


def _window(batch_size: int) -> int:
    return max(1, WINDOW_TOKENS // batch_size)


def num_predicted(
    num_tokens: int, batch_size: int, sentence_end: int | None, columns: slice = slice(None)
) -> int:
    """How many tokens `evaluate` predicts: of sentences all, of streams all but the first.

    Some columns of sentences have about as many as others.
    """
    if sentence_end is not None:
        return len(range(num_tokens)[columns])
    return (num_tokens // batch_size - 1) * len(range(batch_size)[columns])


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
