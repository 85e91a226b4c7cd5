"""Memory for a large table that lives as long as one call.

The system hands out new memory in pages, each with an interruption at its first use: for 96 MiB in
pages of 4 KiB these take a twentieth of the time of the fused loss. Linux gives pages of 2 MiB to
who asks for them.
"""

import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 * 2**20


def new_table(like: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """A matrix of the tensor's dtype on its device; what is in it is not defined."""
    num_bytes = num_rows * num_columns * like.itemsize
    # Stand-ins for tensors, such as those of a compiler, are not made of memory.
    is_plain = type(like) is Tensor and like.is_cpu and not torch.compiler.is_compiling()
    if not is_plain or num_bytes < 2 * HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(num_rows, num_columns)
    # Shared memory, the default, has page sizes of its own.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return like.new_empty(num_rows, num_columns)
    # The tensor keeps the memory, and gives it back when it goes.
    return torch.frombuffer(memory, dtype=like.dtype).view(num_rows, num_columns)
