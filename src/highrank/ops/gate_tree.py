"""Weighted sums whose weights are the leaves of a binary tree of gates, as Mixtape has them.

K leaves, a power of two; node 0 is the root, 2j + 1 and 2j + 2 are the children of node j.
n tokens, X columns, E and G sizes of what values and gates are products of.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.precision import autocast_dtype
from highrank.ops.tracing import needs_operators


def mix_leaves(values: Tensor, gate: Tensor) -> Tensor:
    """Σ_k π_k values_k (n, X), π_k being the product of gates on the way to leaf k.

    From the leaves up, each node mixes its two children: π is never formed, and sums to one.

    Args:
        values: (n, K, X), K a power of two.
        gate: (n, K-1, X) or (n, K-1, 1), between 0 and 1.
    """
    for opened in reversed(gate.split(_levels(gate), 1)):  # (n, nodes of a level, X)
        first, second = values.unflatten(1, (-1, 2)).unbind(2)
        values = torch.lerp(second, first, opened)
    return values.squeeze(1)


def mix_products(context: Tensor, weight: Tensor, gate: Tensor, gate_weight: Tensor) -> Tensor:
    """`mix_leaves(context @ weight.T, σ(gate @ gate_weight.T))` (n, X).

    The memory is that of the products, also for the gradients; a second backward pass makes the
    products anew.

    Args:
        context: (n, K, E), K a power of two.
        weight: (X, E).
        gate: (n, K-1, G).
        gate_weight: (X, G).
    """
    if autocast_dtype(context.device) is not None or needs_operators(context):
        return _mixed_products(context, weight, gate, gate_weight)
    found: Tensor = _MixedProducts.apply(context, weight, gate, gate_weight)
    return found


def _mixed_products(context: Tensor, weight: Tensor, gate: Tensor, gate_weight: Tensor) -> Tensor:
    """The definition of `mix_products`."""
    return mix_leaves(F.linear(context, weight), F.linear(gate, gate_weight).sigmoid())


def _levels(gate: Tensor) -> list[int]:
    """Nodes of each level, from the root."""
    return [2**level for level in range((gate.shape[1] + 1).bit_length() - 1)]


def _nodes(values: Tensor, opened: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """First children, second children and gates of each level, from the leaves up.

    A node has the place of its second child: 1 and 3 are above 0 1 2 3, and 3 is the root.
    """
    stride = 1
    for part in reversed(opened.split(_levels(opened), 1)):
        level = values[:, stride - 1 :: stride]
        yield level[:, ::2], level[:, 1::2], part
        stride *= 2


def _differences(
    context: Tensor, weight: Tensor, gate: Tensor, gate_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Differences of children in place of the first ones, with the result last; and gates."""
    values = F.linear(context, weight)  # (n, K, X)
    opened = F.linear(gate, gate_weight).sigmoid_()  # (n, K-1, X)
    for first, second, part in _nodes(values, opened):
        first.sub_(second)
        second.addcmul_(part, first)
    return values, opened


class _MixedProducts(Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        values, opened = _differences(*tensors)
        ctx.tables = values, opened
        return values[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            given, wanted = ctx.saved_tensors, ctx.needs_input_grad
            return tuple(differentiable_gradients(_mixed_products, given, wanted, upstream))
        context, weight, gate, gate_weight = ctx.saved_tensors
        # Handed over, since they are overwritten.
        tables, ctx.tables = ctx.tables, None
        values, opened = tables or _differences(context, weight, gate, gate_weight)
        values[:, -1] = upstream
        for difference, of_node, part in reversed(list(_nodes(values, opened))):
            of_first = of_node * part
            of_node.sub_(of_first)
            # σ′ = σ (1 - σ), and the second child has the gradient with 1 - σ in it.
            part.mul_(of_node).mul_(difference)
            difference.copy_(of_first)
        wanted = ctx.needs_input_grad
        return (
            values @ weight if wanted[0] else None,
            _of_weight(values, context) if wanted[1] else None,
            opened @ gate_weight if wanted[2] else None,
            _of_weight(opened, gate) if wanted[3] else None,
        )


def _of_weight(of_product: Tensor, x: Tensor) -> Tensor:
    return of_product.flatten(0, 1).T @ x.flatten(0, 1)
