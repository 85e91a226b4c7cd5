"""Where a token's probability comes from: the softmaxes of a head, or a part beside them."""

from typing import Any

import torch
from torch import Tensor

from highrank.heads.bases.head import Head

SOFTMAXES = "softmax"


def share_names(head: Head) -> tuple[str, ...]:
    """Its softmaxes together, then the parts beside them; empty for a head that has none."""
    return (SOFTMAXES, *head.beside) if head.beside else ()


@torch.no_grad()
def shares(head: Head, hidden: Tensor, target: Tensor, **past: Any) -> Tensor:
    """Fractions (..., 1 + J) of the targets' probability, as `share_names` names them.

    Args:
        hidden: (..., D).
        target: (...), token ids.
        past: `tokens` and `state`, of a head that looks back.
    """
    features = head.features(hidden, **past)
    log_p = head.log_prob_from(features).gather(-1, target[..., None])  # (..., 1)
    beside = (head.log_beside(features, target) - log_p).exp().clamp(max=1.0)  # (..., J)
    return torch.cat([(1 - beside.sum(-1, keepdim=True)).clamp(min=0.0), beside], -1)
