"""How large gradients are on the training text: what scales the steps of dynamic evaluation.

Krause, Kahembwe, Murray and Renals (2018), arXiv 1709.07432, and their code. For each element of
each parameter, σ = √(mean over batches of g²), where g is the gradient of a batch's mean loss. A
batch is as many steps long as the segments that the evaluation learns from: their --bptt is both.
T time, B batches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.evaluation.gradients import differentiable, gradients, read_to_learn
from highrank.evaluation.scored import Read, reader
from highrank.evaluation.static import Columns
from highrank.ops.precision import at_least_float32

NUM_COLUMNS, SEGMENT = 100, 5


@dataclass(frozen=True, kw_only=True)
class GradientStatistics:
    rms: Mapping[str, Tensor]
    """σ by the parameter's name, in the parameter's shape; a tied parameter once."""
    num_batches: int
    """B."""
    segment: int
    """Steps of a batch."""

    @property
    def num_tensors(self) -> int:
        return len(self.rms)

    @property
    def mean_rms(self) -> float:
        """σ̄: the mean over tensors of each tensor's mean σ."""
        means = [rms.cpu().mean(dtype=torch.float64).item() for rms in self.rms.values()]
        return sum(means) / len(means)


def gradient_statistics(
    model: nn.Module,
    tokens: NDArray[np.integer],
    *,
    num_columns: int = NUM_COLUMNS,
    segment: int = SEGMENT,
    on_progress: Callable[[float, str], None] | None = None,
    read: Read | None = None,
) -> GradientStatistics:
    """σ of every parameter on the training text, with everything random off.

    The text is read from left to right in `num_columns` columns, the state carried from a zero
    start; the model is left as it was.

    Args:
        tokens: the training text.
        segment: steps of each column in a batch; the evaluation's segments must be as long.
        read: how to read with a model that is no `LanguageModel`.
    """
    if segment < 1:
        raise ValueError(f"segment must be at least 1, got {segment}")
    data = Columns(tokens, num_columns, next(model.parameters()).device)
    if len(data) < 3:
        raise ValueError(
            f"the text must have at least three tokens for each of {num_columns} columns, "
            f"got {len(tokens)} tokens"
        )
    read, parameters = reader(model, read), dict(model.named_parameters())
    squares = [torch.zeros_like(p, dtype=at_least_float32(p.dtype)) for p in parameters.values()]
    parts, state = list(batches(len(data), segment)), None
    with differentiable(model, parameters.values()):
        for index, (start, length) in enumerate(parts, 1):
            words, target = data[start : start + length], data[start + 1 : start + 1 + length]
            reading = read_to_learn(read, words, target, state)
            state = reading.state
            found = gradients(reading, list(parameters.values()))
            _add_squares(squares, found)
            if on_progress is not None:
                on_progress(index / len(parts), "gradients on the training text")
    rms = {name: s.div_(len(parts)).sqrt_() for name, s in zip(parameters, squares, strict=True)}
    return GradientStatistics(rms=rms, num_batches=len(parts), segment=segment)


def batches(num_rows: int, segment: int) -> Iterator[tuple[int, int]]:
    """Start and length of each batch: ⌈(T - 2) / segment⌉ of them, as in the published code.

    The last may be short; one of a single step is left out.
    """
    for start in range(0, num_rows - 2, segment):
        yield start, min(segment, num_rows - 1 - start)


@torch.no_grad()
def _add_squares(squares: list[Tensor], found: tuple[Tensor, ...]) -> None:
    wide = [g.to(s.dtype) for g, s in zip(found, squares, strict=True)]
    torch._foreach_addcmul_(squares, wide, wide)
