"""From the losses of the tokens to one loss, with impossible targets (loss +inf) in mind."""

import torch
from torch import Tensor

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
