"""From the losses of the tokens to one loss, with impossible targets (loss +inf) in mind.

The definition, in eager PyTorch: every other backend is tested against this file.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.ops.numerics import at_least_float32

REDUCTIONS = ("mean", "sum", "none")


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


def token_losses(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    softcap: float | None,
) -> Tensor:
    logits = F.linear(context, weight, bias)  # (N, K, V)
    logits = logits.to(at_least_float32(logits.dtype))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    index = target.long()[:, None, None].expand(-1, logits.size(1), 1)  # (N, K, 1)
    log_p = logits.log_softmax(-1).gather(-1, index).squeeze(-1)  # (N, K)
    joint = log_weight + log_p  # (N, K)
    # A row of -inf has no gradient, but autograd would make NaN of it: it never sees the row.
    impossible = (joint == -torch.inf).all(-1)  # (N,)
    log_p = joint.masked_fill(impossible[:, None], 0.0).logsumexp(-1)  # (N,)
    return -log_p.masked_fill(impossible, -torch.inf)


def losses(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    softcap: float | None,
    reduction: str,
    chunk_bytes: int | None,
) -> tuple[Tensor, Tensor]:
    """Materialises N × K × V numbers; `chunk_bytes` has no meaning here."""
    token_loss = token_losses(context, log_weight, weight, bias, target, softcap)
    if reduction == "none":
        return token_loss, token_loss
    return token_loss.detach(), reduce(token_loss, reduction)
