"""The precision in which sums over words and tokens are kept."""

import torch


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the dtype itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
