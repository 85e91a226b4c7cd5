"""The precision of multiplies, and of sums over words and tokens."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def in_autocast_dtype(
    context: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What enters the matrix multiply, in autocast's dtype where autocast is on.

    Autocast leaves float64 as it is.
    """
    device_type = context.device.type
    is_there = torch.amp.is_autocast_available(device_type)
    if not is_there or not torch.is_autocast_enabled(device_type):
        return context, weight, bias
    dtype = torch.get_autocast_dtype(device_type)

    def cast(tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    return cast(context), cast(weight), None if bias is None else cast(bias)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Multiplies inside have the precision of their inputs, also where there is no autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
