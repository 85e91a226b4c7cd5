"""Arguments and results of a head's `forward`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank.ops.loss import ByProduct, LossOptions, Reduction, Target
from highrank.ops.loss.targets import shift_targets
from highrank.ops.precision import log_sum


class HeadOutput(NamedTuple):
    """The result of `nn.AdaptiveLogSoftmaxWithLoss`, too."""

    output: Tensor
    """log p of each target (...), 0 where it is ignored. Detached unless `reduction` is "none"."""
    loss: Tensor
    """The reduced negative log-likelihood and, in training, the head's penalty."""


class MeasuredOutput(NamedTuple):
    """`HeadOutput` and the by-products that `also` names."""

    output: Tensor
    loss: Tensor
    by_products: dict[str, Tensor]


class ForwardOptions(LossOptions, total=False):
    """Keyword arguments of a head's `forward`."""

    tokens: Tensor  # (T, B)
    state: Any
    position: Tensor  # (T, B)
    with_penalty: bool


class Beside(NamedTuple):
    """Further terms of a mixture of which a head's own distribution is the first."""

    log_gate: Tensor  # (..., 1 + J), normalised: the head's own weight comes first
    log_q: Tensor  # (..., J), of the targets; each token has one

    def log_mixed(self, log_p: Tensor) -> Tensor:
        """log (g_0 p + Σ_j g_j q_j), (..., 1), from the head's log p of the targets (..., 1)."""
        return log_sum(self.log_gate + torch.cat((log_p, self.log_q), -1), -1).unsqueeze(-1)


class LossSettings(NamedTuple):
    """Arguments of `forward` besides hidden states and targets."""

    reduction: Reduction
    ignore_index: int
    also: Sequence[ByProduct]
    options: LossOptions
    beside: Beside | None = None

    def arguments(self) -> dict[str, Any]:
        """The same as keyword arguments of `mixture_loss`."""
        rest = {"ignore_index": self.ignore_index, "also": self.also, **self.options}
        return {"reduction": self.reduction, **rest}


def penalised(
    loss: Tensor, penalty: Tensor | float, target: Target, settings: LossSettings
) -> Tensor:
    """The loss and the penalty, which a sum has once for each target that is not ignored."""
    if settings.reduction == "none" or not isinstance(penalty, Tensor):
        return loss
    if settings.reduction == "mean":
        return loss + penalty
    ids = shift_targets(target, settings.options.get("shift", 0))
    is_target = (ids[0] if isinstance(ids, tuple) else ids[..., None]) != settings.ignore_index
    return loss + penalty * is_target.any(-1).sum()
