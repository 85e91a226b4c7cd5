"""Averages of a run's weights, and when they start.

NT-ASGD, Merity et al. (2018), starts when validation stops improving; its average is the plain mean
of all iterates since. torch.optim.ASGD, which the original code uses, leaves out the first iterate
and applies each step's learning rate one step late.

Polynomial-decay averaging, Shamir and Zhang (2013), arXiv 1212.1824, weights the iterates by a
power of their step: whenever a run at a constant rate is stopped, its average is of the last steps,
as many as are a fixed fraction of the run.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from highrank.training.sharding import shard


class Average:
    """The mean of a model's parameters over the updates since it was made.

    Args:
        power: γ. Update t has about the weight t^γ, so that the mean is of the last 1 / (γ + 1) of
            all updates; 0 is the plain mean.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], power: float = 0.0) -> None:
        self.values = [p.detach().clone() for p in parameters]
        self.count, self.power = 0, power

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        self.count += 1
        for value, p in zip(self.values, parameters, strict=True):
            value.lerp_(p, (1 + self.power) / (self.count + self.power))

    def state_dict(self) -> dict[str, list[Tensor] | int]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, list[Tensor] | int]) -> None:
        values, count = state["values"], state["count"]
        assert isinstance(values, list) and isinstance(count, int)
        pairs = zip(values, self.values, strict=True)
        self.values = [shard(new.to(old.device), old) for new, old in pairs]
        self.count = count
