"""Mix values at the leaves of a binary tree by gates at its nodes.

Node 0 is the root; 2j + 1 and 2j + 2 are the children of node j. A gate is the weight of the first
child. n tokens, K leaves, X numbers at each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from highrank.ops.tracing import in_torch_func, is_traced


def mixed(values: Tensor, gate: Tensor) -> Tensor:
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


def mixed_by_score(values: Tensor, score: Tensor) -> Tensor:
    """`mixed(values, score.sigmoid())` with scores (n, K-1, X), in fewer passes."""
    if is_traced(values) or in_torch_func():
        return mixed(values, score.sigmoid())
    found: Tensor = _Mixed.apply(values, score)
    return found


def _levels(gate: Tensor) -> list[int]:
    """Nodes of each level, from the root."""
    return [2**level for level in range((gate.shape[1] + 1).bit_length() - 1)]


class _Mixed(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, score: Tensor) -> Tensor:
        gate = score.sigmoid()  # (n, K-1, X)
        differences = []
        for opened in reversed(gate.split(_levels(gate), 1)):
            first, second = values.unflatten(1, (-1, 2)).unbind(2)
            differences.append(first - second)
            values = torch.addcmul(second, opened, differences[-1])
        ctx.save_for_backward(gate, *reversed(differences))
        return values.squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        gate, *differences = ctx.saved_tensors
        slope = torch.empty_like(gate)
        levels = zip(
            gate.split(_levels(gate), 1), slope.split(_levels(gate), 1), differences, strict=True
        )
        upstream = upstream[:, None]  # (n, 1, X)
        for opened, d_opened, difference in levels:
            torch.mul(upstream, difference, out=d_opened)
            children = opened.new_empty(len(opened), opened.shape[1], 2, opened.shape[2])
            torch.mul(upstream, opened, out=children[:, :, 0])
            torch.sub(upstream, children[:, :, 0], out=children[:, :, 1])
            upstream = children.flatten(1, 2)
        torch.ops.aten.sigmoid_backward.grad_input(slope, gate, grad_input=slope)
        return upstream, slope
