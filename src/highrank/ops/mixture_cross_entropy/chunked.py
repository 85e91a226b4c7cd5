"""Recompute in the backward pass: any upstream gradient, `torch.func.grad`, second derivatives.

Four matrix multiplies instead of `fused`'s three. Second derivatives go through the reference,
with its memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.mixture_cross_entropy.reference import Inputs, reduce, token_losses
from highrank.ops.mixture_cross_entropy.stream import NOTHING, Wanted, in_dtypes_of, stream


def losses(inputs: Inputs, reduction: str, chunk_bytes: int | None) -> tuple[Tensor, Tensor]:
    token_loss = _TokenLosses.apply(*inputs, chunk_bytes)
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
    def forward(*arguments: Any) -> Tensor:
        *fields, chunk_bytes = arguments
        inputs = Inputs(*fields)
        return stream(inputs, inputs.context.new_empty(0), NOTHING, chunk_bytes)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.logit_map, ctx.chunk_bytes = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = Inputs._make((*ctx.saved_tensors, ctx.logit_map))
        wanted = Wanted(*ctx.needs_input_grad[:5])
        return (*gradients_of(inputs, upstream, wanted, ctx.chunk_bytes), None, None, None)


class _Gradients(Function):
    """The backward pass as a function of its own, so that it has a derivative."""

    @staticmethod
    def forward(upstream: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
        *fields, wanted, chunk_bytes = arguments
        inputs = Inputs(*fields)
        _, gradients = stream(inputs, upstream, wanted, chunk_bytes)
        return in_dtypes_of(inputs, gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.logit_map, _, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstreams: Any) -> tuple[Tensor | None, ...]:
        upstream, *given, target = ctx.saved_tensors
        # Bias and extra terms may be missing; the rest are positions in `given`.
        present = [index for index, tensor in enumerate(given) if tensor is not None]
        tensors = [given[index] for index in present]

        def slow_losses(*tensors: Tensor) -> Tensor:
            fields = dict(zip(present, tensors, strict=True))
            found = (fields.get(index) for index in range(len(given)))
            return token_losses(Inputs._make((*found, target, ctx.logit_map)))

        def slow_gradients(upstream: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vjp(slow_losses, *tensors)[1](upstream)

        pull_back = torch.func.vjp(slow_gradients, upstream, *tensors)[1]
        wanted = [upstreams[index] for index in present]
        pairs = zip(wanted, tensors, strict=True)
        first, *rest = pull_back(tuple(torch.zeros_like(t) if u is None else u for u, t in pairs))
        second = dict(zip(present, rest, strict=True))
        return (first, *(second.get(index) for index in range(len(given))), *[None] * 4)
