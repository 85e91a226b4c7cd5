"""The update of dynamic evaluation: two passes over the weights for each segment.

What stays the same from segment to segment is computed once.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from highrank.evaluation.statistics import GradientStatistics

Update = Callable[[Sequence[Tensor]], None]
"""Takes the gradients of one segment's loss, and changes the parameters."""


def rms_update(
    parameters: Mapping[str, nn.Parameter],
    statistics: GradientStatistics,
    *,
    lr: float,
    epsilon: float,
    decay: float,
) -> Update:
    """θ ← θ + min(λ·σ/σ̄, 1)·(θ₀ - θ) - η·g / (σ + ε), with θ₀ the weights as they are now."""
    weights: list[Tensor] = list(parameters.values())
    trained = [p.detach().clone() for p in weights]
    rms = [statistics.rms[name].to(p) for name, p in parameters.items()]
    share = decay / statistics.mean_rms
    pull = [(share * sigma).clamp_(max=1.0) for sigma in rms]
    scale = [lr / (sigma + epsilon) for sigma in rms]

    @torch.no_grad()
    def update(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, pull)
        torch._foreach_addcmul_(weights, list(gradients), scale, value=-1.0)

    return update


def sgd_update(parameters: Mapping[str, nn.Parameter], *, lr: float, decay: float) -> Update:
    """θ ← θ + λ·(θ₀ - θ) - η·g, with θ₀ the weights as they are now."""
    weights: list[Tensor] = list(parameters.values())
    trained = [p.detach().clone() for p in weights]

    @torch.no_grad()
    def update(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, decay)
        torch._foreach_add_(weights, list(gradients), alpha=-lr)

    return update
