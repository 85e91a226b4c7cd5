"""The precision of multiplies, and of sums over the vocabulary and tokens."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b); -inf, without gradient, where both are -inf."""
    # torch.logaddexp has second derivatives of NaN where the difference is large.
    return log_sum(torch.stack((a, b)), 0)


def log_sum(joint: Tensor, dim: int) -> Tensor:
    """logsumexp along a dimension; -inf, without gradient, where all is -inf."""
    # A row of -inf has no gradient, but autograd would make NaN of it: it never sees the row.
    impossible = (joint == -torch.inf).all(dim)
    found = joint.masked_fill(impossible.unsqueeze(dim), 0.0).logsumexp(dim)
    return found.masked_fill(impossible, -torch.inf)


def in_autocast_dtype(
    context: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The factors of the matrix multiply, in autocast's dtype where autocast is on.

    Autocast leaves float64 as it is.
    """
    dtype = autocast_dtype(context.device)
    if dtype is None:
        return context, weight, bias

    def cast(tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    return cast(context), cast(weight), None if bias is None else cast(bias)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast multiplies in; None where it is off."""
    is_there = torch.amp.is_autocast_available(device.type)
    if not is_there or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Multiplies inside have the precision of their inputs, also where there is no autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
