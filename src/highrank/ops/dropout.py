"""Dropout whose mask is shared along a dimension ("locked" or "variational" dropout)."""

import torch.nn.functional as F
from torch import Tensor


def locked_dropout(x: Tensor, p: float, shared_dim: int | None) -> Tensor:
    """`F.dropout(x, p)` with one mask for all positions along `shared_dim`; None shares nothing."""
    if p == 0:
        return x
    shape = list(x.shape)
    if shared_dim is not None:
        shape[shared_dim] = 1
    return x * F.dropout(x.new_ones(shape), p)


def sequence_dropout(x: Tensor, p: float, num_leading: int, batch_first: bool) -> Tensor:
    """One mask per sequence of (T, B, …), or (B, T, …); rows (N, …) have a mask each."""
    return locked_dropout(x, p, int(batch_first) if num_leading > 1 else None)
