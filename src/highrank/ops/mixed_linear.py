"""Products with a weight that is stored in fewer digits than what it meets: bfloat16 and float32.

The weight is converted a block of rows at a time, in the forward and in the backward pass, so that
there never is a second copy of it. N tokens, E input size, V output size.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.precision import autocast_dtype
from highrank.ops.tracing import needs_operators

BLOCK_BYTES = 16 * 2**20


def is_wider(x: Tensor, weight: Tensor) -> bool:
    """Whether x is in another precision than the weight, which has all of the weight's numbers."""
    if x.dtype == weight.dtype or not weight.is_floating_point():
        return False
    return torch.promote_types(x.dtype, weight.dtype) == x.dtype


def row_slices(weight: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    """Blocks of rows to be converted to a precision; one of all rows if it is theirs."""
    num_rows, size = len(weight), len(weight)
    if weight.dtype != dtype:
        size = BLOCK_BYTES // (weight.shape[1] * dtype.itemsize)
    # Also of no rows, which a part of a vocabulary may have.
    starts = range(0, max(1, num_rows), max(1, size))
    return (slice(start, min(start + max(1, size), num_rows)) for start in starts)


def product_with_rows(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Make `out` (N, V) x @ weight.T + bias, in the precision of x (N, E)."""
    for rows in row_slices(weight, x.dtype):
        part = weight[rows].to(x.dtype)
        if bias is None:
            torch.mm(x, part.T, out=out[:, rows])
        else:
            torch.addmm(bias[rows].to(x.dtype), x, part.T, out=out[:, rows])


def product_with_columns(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Make `out` (N, E) x @ weight, in the precision of x (N, V)."""
    for rows in row_slices(weight, x.dtype):
        part = weight[rows].to(x.dtype)
        if rows.start == 0:
            torch.mm(x[:, rows], part, out=out)
        else:
            torch.addmm(out, x[:, rows], part, out=out)
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` (..., V) in the precision of x (..., E), which may be more than the weight's.

    Compilers and transforms of `torch.func` are given the weight converted as a whole.
    """
    if not is_wider(x, weight) or autocast_dtype(x.device) is not None:
        return F.linear(x, weight, bias)
    if needs_operators(x):
        return _whole(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias)
    return found


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x) in the precision of x, which may be more than that of the layer's parameters.

    For small layers: there is a copy of their parameters then.
    """
    parameters = dict(layer.named_parameters())
    is_mixed = any(is_wider(x, parameter) for parameter in parameters.values())
    if not is_mixed or autocast_dtype(x.device) is not None:
        found: Tensor = layer(x)
        return found
    copies = {name: parameter.to(x.dtype) for name, parameter in parameters.items()}
    found = torch.func.functional_call(layer, copies, (x,))
    return found


def _whole(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        out = x.new_empty(*x.shape[:-1], len(weight))
        product_with_rows(x.reshape(-1, x.shape[-1]), weight, bias, out.view(-1, len(weight)))
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            found = differentiable_gradients(_whole, (x, weight, bias), wanted, upstream)
            return tuple(found)
        rows, slope = x.reshape(-1, x.shape[-1]), upstream.reshape(-1, len(weight))
        d_x = d_weight = d_bias = None
        if wanted[0]:
            d_x = product_with_columns(slope, weight, torch.empty_like(rows)).view(x.shape)
        if wanted[1]:
            d_weight = torch.empty_like(weight)
            for part in row_slices(weight, x.dtype):
                d_weight[part] = slope[:, part].T @ rows
        if wanted[2]:
            d_bias = slope.sum(0).to(bias.dtype)
        return d_x, d_weight, d_bias
