"""Logits of which different columns come from different contexts, made in one table.

n tokens, K softmaxes, E embedding size, V vocabulary, S columns of a block.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from highrank.ops.numerics import new_table


def joined_linear(
    contexts: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor,
    before: Tensor | None = None,
    num_softmaxes: int = 1,
) -> Tensor:
    """[before, context_1 @ weight_1.T, context_2 @ weight_2.T, …] + bias, (n, K, V).

    As `torch.cat` of the blocks, without the copy. The columns of one softmax follow those of
    another. The result is no view, and may be overwritten before its backward pass.

    Args:
        contexts: of each block, (n, E).
        weights: of each block, (S, E).
        bias: (K · V,).
        before: (n, S), columns that are known already.
        num_softmaxes: K.
    """
    device = bias.device.type
    tensors = [bias, bias.new_empty(len(contexts[0]), 0) if before is None else before]
    tensors += [*contexts, *weights]
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        tensors = [t if t.dtype == torch.float64 else t.to(dtype) for t in tensors]
    joined: Tensor = _Joined.apply(num_softmaxes, *tensors)
    return joined


class _Joined(Function):
    @staticmethod
    def forward(
        ctx: Any, num_softmaxes: int, bias: Tensor, before: Tensor, *blocks: Tensor
    ) -> Tensor:
        contexts, weights = _halves(blocks)
        table = new_table(bias, len(before), len(bias))  # (n, K · V)
        start = before.shape[1]
        torch.add(before, bias[:start], out=table[:, :start])
        for context, weight in zip(contexts, weights, strict=True):
            end = start + len(weight)
            torch.addmm(bias[start:end], context, weight.T, out=table[:, start:end])
            start = end
        ctx.start = before.shape[1]
        ctx.save_for_backward(*blocks)
        shape = (len(table), num_softmaxes, len(bias) // num_softmaxes)
        result: Tensor = table.new_empty(0)
        return result.set_(table.untyped_storage(), 0, shape, (len(bias), shape[2], 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        contexts, weights = _halves(ctx.saved_tensors)
        upstream = upstream.flatten(1)  # (n, K · V)
        wants_bias, wants_before, *wants = ctx.needs_input_grad[1:]
        wants_context, wants_weight = _halves(wants)
        d_context: list[Tensor | None] = []
        d_weight: list[Tensor | None] = []
        start = ctx.start
        for index, (context, weight) in enumerate(zip(contexts, weights, strict=True)):
            part = upstream[:, start : start + len(weight)]  # (n, S)
            d_context.append(part @ weight if wants_context[index] else None)
            d_weight.append(part.T @ context if wants_weight[index] else None)
            start += len(weight)
        # A product with ones is faster than a sum over rows.
        d_bias = upstream.T @ upstream.new_ones(len(upstream)) if wants_bias else None
        d_before = upstream[:, : ctx.start] if wants_before else None
        return None, d_bias, d_before, *d_context, *d_weight


def _halves(blocks: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    half = len(blocks) // 2
    return blocks[:half], blocks[half:]
