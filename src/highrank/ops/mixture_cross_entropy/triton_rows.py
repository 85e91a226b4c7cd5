"""Triton kernels for the rows of a chunk with one target each: two numbers a row, then the slope.

The logits are read once for the log-sum-exp and the target's logit, and once more where they are
overwritten by the slope of the loss. Half precision is read and written as it is, and computed in
float32. `stream` takes these kernels on CUDA. They have never run on a GPU: they are tested in
Triton's interpreter, and compiled for GPUs. R rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from highrank.ops.precision import at_least_float32

# The most columns that a program holds at once.
MAX_BLOCK, NUM_WARPS = 4096, 8


def row_statistics(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The log-sum-exp and the target's logit of each row, each (R, 1), in at least float32.

    Args:
        z: logits (R, V); -inf is a token that cannot be predicted.
        target: (R, 1), below V.
    """
    z = z.contiguous()
    R, V = z.shape
    found = z.new_empty(2, R, 1, dtype=at_least_float32(z.dtype))
    # Triton launches on the current device, which need not be that of the logits.
    with torch.cuda.device_of(z):
        _row_statistics[(R,)](
            z, target.contiguous(), found[0], found[1], V, BLOCK=_block(V), num_warps=NUM_WARPS
        )
    return found[0], found[1]


def row_slope(
    z: Tensor,
    lse: Tensor,
    factor: Tensor,
    target: Tensor,
    amount: Tensor,
    map_slope: Tensor | None,
) -> Tensor:
    """(factor · softmax(z) - amount · one-hot(target)) · map_slope, (R, V), written into z.

    Args:
        z: contiguous logits (R, V), overwritten.
        lse: their log-sum-exps (R, 1).
        factor: (R, 1).
        target: (R, 1), below V.
        amount: (R, 1).
        map_slope: φ′ of the logits before their map (R, V); None: 1.
    """
    z = z.contiguous()
    R, V = z.shape
    table = z if map_slope is None else map_slope.contiguous()
    thin = [x.contiguous() for x in (lse, factor, target, amount)]
    block = _block(V)
    with torch.cuda.device_of(z):
        _row_slope[(R, triton.cdiv(V, block))](
            z, *thin, table, V, HAS_MAP=map_slope is not None, BLOCK=block, num_warps=NUM_WARPS
        )
    return z


def _block(num_columns: int) -> int:
    return min(MAX_BLOCK, int(triton.next_power_of_2(num_columns)))


@triton.jit
def _row_statistics(
    z,
    target,
    lse,
    target_logit,
    num_columns,
    BLOCK: tl.constexpr,
):
    """One program a row, online: a larger logit rescales the sum of those before it."""
    # A table may have more numbers than an int32 counts.
    row = tl.program_id(0).to(tl.int64)
    dtype = lse.dtype.element_ty
    z += row * num_columns
    top = tl.full((), float("-inf"), dtype)
    total = tl.full((), 0.0, dtype)
    for start in range(0, num_columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(z + column, mask=column < num_columns, other=float("-inf")).to(dtype)
        new_top = tl.maximum(top, tl.max(x, 0))
        # As long as all is -inf, the difference from the largest would be NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift), 0)
        top = new_top
    tl.store(lse + row, top + tl.log(total))
    tl.store(target_logit + row, tl.load(z + tl.load(target + row)).to(dtype))


@triton.jit
def _row_slope(
    z,
    lse,
    factor,
    target,
    amount,
    map_slope,
    num_columns,
    HAS_MAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row and a block of its columns, each of which only it reads and writes."""
    row = tl.program_id(0).to(tl.int64)
    dtype = lse.dtype.element_ty
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = row * num_columns + column
    is_inside = column < num_columns
    x = tl.load(z + place, mask=is_inside, other=float("-inf")).to(dtype)
    slope = tl.exp(x - tl.load(lse + row)) * tl.load(factor + row)
    slope -= tl.where(column == tl.load(target + row), tl.load(amount + row), 0.0)
    if HAS_MAP:
        slope *= tl.load(map_slope + place, mask=is_inside, other=0.0)
    tl.store(z + place, slope.to(z.dtype.element_ty), mask=is_inside)
