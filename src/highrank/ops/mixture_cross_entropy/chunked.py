"""Recompute in the backward pass: any upstream gradient, `torch.func.grad`, second derivatives.

Four matrix multiplies instead of `fused`'s three. Second derivatives go through the reference,
with its memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.mixture_cross_entropy.reference import reduce, token_losses
from highrank.ops.mixture_cross_entropy.stream import NOTHING, Inputs, Wanted, in_dtypes_of, stream


def losses(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    softcap: float | None,
    reduction: str,
    chunk_bytes: int | None,
) -> tuple[Tensor, Tensor]:
    token_loss = _TokenLosses.apply(context, log_weight, weight, bias, target, softcap, chunk_bytes)
    if reduction == "none":
        return token_loss, token_loss
    return token_loss.detach(), reduce(token_loss, reduction)


def gradients_of(
    inputs: Inputs, upstream: Tensor, wanted: Wanted, chunk_bytes: int | None
) -> tuple[Tensor | None, ...]:
    """The wanted gradients of Σ upstream · token loss, differentiable in turn."""
    gradients: tuple[Tensor | None, ...] = _Gradients.apply(upstream, *inputs, wanted, chunk_bytes)
    return gradients


class _TokenLosses(Function):
    @staticmethod
    def forward(
        context: Tensor,
        log_weight: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        softcap: float | None,
        chunk_bytes: int | None,
    ) -> Tensor:
        inputs = Inputs(context, log_weight, weight, bias, target, softcap)
        return stream(inputs, context.new_empty(0), NOTHING, chunk_bytes)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.softcap, ctx.chunk_bytes = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        context, log_weight, weight, bias, target = ctx.saved_tensors
        inputs = Inputs(context, log_weight, weight, bias, target, ctx.softcap)
        wanted = Wanted(*ctx.needs_input_grad[:4])
        return (*gradients_of(inputs, upstream, wanted, ctx.chunk_bytes), None, None, None)


class _Gradients(Function):
    """The backward pass as a function of its own, so that it has a derivative."""

    @staticmethod
    def forward(
        upstream: Tensor,
        context: Tensor,
        log_weight: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        softcap: float | None,
        wanted: Wanted,
        chunk_bytes: int | None,
    ) -> tuple[Tensor | None, ...]:
        inputs = Inputs(context, log_weight, weight, bias, target, softcap)
        _, gradients = stream(inputs, upstream, wanted, chunk_bytes)
        return in_dtypes_of(inputs, gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.softcap, _, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstreams: Any) -> tuple[Tensor | None, ...]:
        upstream, *tensors, target = ctx.saved_tensors
        tensors = [t for t in tensors if t is not None]

        def slow_losses(
            context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None = None
        ) -> Tensor:
            return token_losses(context, log_weight, weight, bias, target, ctx.softcap)

        def slow_gradients(upstream: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vjp(slow_losses, *tensors)[1](upstream)

        pull_back = torch.func.vjp(slow_gradients, upstream, *tensors)[1]
        # Without a bias the last upstream belongs to nothing.
        given = zip(upstreams, tensors, strict=False)
        second = pull_back(tuple(torch.zeros_like(t) if u is None else u for u, t in given))
        return (*second, *[None] * (9 - len(second)))
