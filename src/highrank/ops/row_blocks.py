"""The rows of a tensor in another order, in blocks, at the price of at most one copy each way.

V rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.tracing import is_static, needs_operators


def row_blocks(x: Tensor, order: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """x[order] in blocks of these sizes; without a copy if the order is 0 … V - 1.

    The gradient is written to its place: each row is there once, and nothing must be summed.

    Args:
        x: (V, …).
        order: (V,), a permutation.
        sizes: that add up to V.
    """
    if needs_operators(x):
        return torch.split(x.index_select(0, order), list(sizes))
    # An accelerator would have to be waited for.
    is_sorted = not is_static(order) and torch.equal(order, torch.arange(len(order)))
    found: tuple[Tensor, ...] = _Blocks.apply(x, None if is_sorted else order, list(sizes))
    return found


class _Blocks(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, order: Tensor | None, sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        ctx.shape, ctx.sizes = x.shape, sizes
        ctx.save_for_backward(order)
        if order is None:
            return tuple(x.split(sizes))
        return tuple(x.index_select(0, part) for part in order.split(sizes))

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        if order is None and len(upstreams) == 1:
            return upstreams[0], None, None
        whole, start = upstreams[0].new_empty(ctx.shape), 0
        for size, upstream in zip(ctx.sizes, upstreams, strict=True):
            part = slice(start, start + size)
            whole[part if order is None else order[part]] = upstream
            start += size
        return whole, None, None


def inverse_permutation(order: Tensor) -> Tensor:
    """The place (V,) of each number in a permutation (V,)."""
    places = torch.arange(order.shape[0], device=order.device)
    return torch.zeros_like(order).scatter(0, order, places)
