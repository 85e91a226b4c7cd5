"""Memory of a chunk of tokens: how many fit, and a table for their logits."""

import mmap

import torch
from torch import Tensor

# A chunk on a CPU has as many rows as its multiplies want, in between half of this and all of it:
# within 4 % of the fastest for V = 10,000 … 50,257 (docs/log.md). Of a small vocabulary more rows
# are no faster, and less of them stays in the cache.
CHUNK_BYTES = 96 * 2**20
CPU_ROWS, MOST_CPU_ROWS = 768, 1280
# A kernel of an accelerator wants more, to keep all of it busy.
ACCELERATOR_ROWS, ACCELERATOR_BYTES = 4096, 2**30


def tokens_per_chunk(
    rows_per_token: int, row_bytes: int, chunk_bytes: int | None, device: torch.device
) -> int:
    """Number of tokens whose logits fit, at least one.

    Args:
        row_bytes: of one row of logits.
        chunk_bytes: of a chunk; None chooses by the size of a row and by the device.
    """
    if chunk_bytes is None and device.type == "cpu":
        least = min(MOST_CPU_ROWS * row_bytes, CHUNK_BYTES // 2)
        chunk_bytes = min(max(CPU_ROWS * row_bytes, least), CHUNK_BYTES)
    elif chunk_bytes is None:
        chunk_bytes = min(ACCELERATOR_ROWS * row_bytes, ACCELERATOR_BYTES)
    return max(1, chunk_bytes // (rows_per_token * row_bytes))


# The system hands out new memory in pages, each with an interruption at its first use: for 96 MiB
# in pages of 4 KiB these take a twentieth of the time of the fused loss. Linux gives pages of 2 MiB
# to who asks for them.
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
