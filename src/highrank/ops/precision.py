"""The precision of multiplies, and of sums over words and tokens."""

import torch
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def in_autocast_dtype(
    context: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What enters the matrix multiply, in autocast's dtype where autocast is on."""
    device_type = context.device.type
    if not torch.is_autocast_enabled(device_type):
        return context, weight, bias
    dtype = torch.get_autocast_dtype(device_type)
    return context.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
