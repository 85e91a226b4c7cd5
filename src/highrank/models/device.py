"""Where a model can be."""

import torch


def check_device(device: str) -> None:
    """Raise unless torch can put tensors there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch has here, got {reason}") from None
