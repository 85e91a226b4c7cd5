"""The definition, in eager PyTorch: every other backend is tested against this file.

N tokens, K components, J further terms, E embedding size, V vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.ops.logit_map import LogitMap
from highrank.ops.numerics import at_least_float32

REDUCTIONS = ("mean", "sum", "none")


class Inputs(NamedTuple):
    """What every backend is given: flat, without ignored targets."""

    context: Tensor  # (N, K, E)
    log_weight: Tensor  # (N, K)
    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)
    extra: Tensor | None  # (N, J)
    target: Tensor  # (N,)
    logit_map: LogitMap | None


def token_losses(inputs: Inputs) -> Tensor:
    """-log (Σ_k exp(log_weight[k]) · softmax(φ(W context[k] + b))[target] + Σ_j exp(extra[j]))."""
    context, log_weight, weight, bias, extra, target, logit_map = inputs
    logits = F.linear(context, weight, bias)  # (N, K, V)
    logits = logits.to(at_least_float32(logits.dtype))
    if logit_map is not None:
        logits = logit_map(logits)
    index = target.long()[:, None, None].expand(-1, logits.size(1), 1)  # (N, K, 1)
    log_p = logits.log_softmax(-1).gather(-1, index).squeeze(-1)  # (N, K)
    joint = log_weight + log_p  # (N, K)
    if extra is not None:
        joint = torch.cat((joint, extra), -1)  # (N, K + J)
    # A row of -inf has no gradient, but autograd would make NaN of it: it never sees the row.
    impossible = (joint == -torch.inf).all(-1)  # (N,)
    log_p = joint.masked_fill(impossible[:, None], 0.0).logsumexp(-1)  # (N,)
    return -log_p.masked_fill(impossible, -torch.inf)


def losses(inputs: Inputs, reduction: str, chunk_bytes: int | None) -> tuple[Tensor, Tensor]:
    """Materialises N × K × V numbers; `chunk_bytes` has no meaning here."""
    token_loss = token_losses(inputs)
    if reduction == "none":
        return token_loss, token_loss
    return token_loss.detach(), reduce(token_loss, reduction)


def reduce(token_loss: Tensor, reduction: str) -> Tensor:
    """The mean or the sum; +inf if a target is impossible, with the gradient of the others."""
    if reduction == "none":
        return token_loss
    impossible = token_loss == torch.inf  # (N,)
    loss = token_loss.masked_fill(impossible, 0.0).sum()
    if reduction == "mean":
        loss = loss / num_possible(impossible)
    return loss + torch.zeros_like(loss).masked_fill(impossible.any(), torch.inf)


def num_possible(impossible: Tensor) -> Tensor:
    """How many targets carry gradient. 1 if there are targets but none does: the loss is +inf."""
    count = (~impossible).sum()
    return count.clamp(min=1) if len(impossible) else count
