"""Dropout whose mask is shared along a dimension ("locked" or "variational" dropout)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def dropout_mask(shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """Independent numbers, 0 with probability p < 1, else 1 / (1 - p), as `like` in all else.

    As F.dropout of ones, whose mask takes nearly three times as long to draw on a CPU.
    """
    random = torch.rand(shape, device=like.device)
    return random.lt_(1 - p).to(like.dtype).div_(1 - p)


def locked_dropout(x: Tensor, p: float, shared_dim: int | None) -> Tensor:
    """`F.dropout(x, p)` with one mask for all positions along `shared_dim`; None shares nothing."""
    if p == 0:
        return x
    shape = list(x.shape)
    if shared_dim is not None:
        shape[shared_dim] = 1
    return x * dropout_mask(shape, p, x)


def sequence_dropout(x: Tensor, p: float, num_leading: int, batch_first: bool) -> Tensor:
    """One mask per sequence of (T, B, …), or (B, T, …); rows (N, …) have a mask each."""
    return locked_dropout(x, p, int(batch_first) if num_leading > 1 else None)
