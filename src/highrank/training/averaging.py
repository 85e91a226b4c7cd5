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
            value.lerp_(p, self.rate)

    @property
    def rate(self) -> float:
        """The weight of the last update in the mean."""
        return 1 / self.count

    def state_dict(self) -> dict[str, list[Tensor] | int]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, list[Tensor] | int]) -> None:
        values, count = state["values"], state["count"]
        assert isinstance(values, list) and isinstance(count, int)
        self.values = [new.to(old.device) for new, old in zip(values, self.values, strict=True)]
        self.count = count


class TailAverage(Average):
    """A mean that follows: update t has a weight that grows as t^power.

    Of a run at a constant learning rate it is a good model at any time, without a decay that would
    have to know the end: polynomial-decay averaging, Shamir and Zhang (2013), arXiv 1212.1824.
    """

    power = 3

    @property
    def rate(self) -> float:
        return (self.power + 1) / (self.power + self.count)
