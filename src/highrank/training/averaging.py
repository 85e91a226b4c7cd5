"""Averaged SGD that starts when validation stops improving: NT-ASGD, Merity et al. (2018).

The average is the plain mean of all iterates since it started. torch.optim.ASGD, which the original
code uses, leaves out the first iterate and applies each step's learning rate one step late.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


def is_non_monotonic(history: Sequence[float], value: float, n: int) -> bool:
    """Whether a value is worse than the best of all but the last n values before it."""
    return len(history) > n and value > min(history[: len(history) - n])


class Average:
    """The mean of a model's parameters over the updates since it was made."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.values = [p.detach().clone() for p in parameters]
        self.count = 0

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        self.count += 1
        for value, p in zip(self.values, parameters, strict=True):
            value.lerp_(p, 1 / self.count)

    def state_dict(self) -> dict[str, list[Tensor] | int]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, list[Tensor] | int]) -> None:
        values, count = state["values"], state["count"]
        assert isinstance(values, list) and isinstance(count, int)
        self.values = [new.to(old.device) for new, old in zip(values, self.values, strict=True)]
        self.count = count
