"""Recompute in the backward pass: any upstream gradient, `torch.func.grad`, second derivatives.

Four matrix multiplies instead of `fused`'s three. Second derivatives go through the reference,
with its memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.loss.targets import reduce_losses
from highrank.ops.mixture_cross_entropy.reference import (
    NUM_DIFFERENTIABLE,
    Inputs,
    Losses,
    Request,
    token_losses,
)
from highrank.ops.mixture_cross_entropy.stream import (
    NOTHING,
    Wanted,
    in_dtypes_of,
    stream,
)


def losses(inputs: Inputs, request: Request) -> Losses:
    token_loss, *others = _TokenLosses.apply(*inputs, request.chunk_bytes, request.also)
    found = dict(zip(request.also, others, strict=True))
    if request.reduction == "none":
        return token_loss, token_loss, found
    return token_loss.detach(), reduce_losses(token_loss, inputs.mass, request.reduction), found


def gradients_of(
    inputs: Inputs, upstream: Tensor, wanted: Wanted, chunk_bytes: int | None
) -> tuple[Tensor | None, ...]:
    """The wanted gradients of Σ upstream · token loss, differentiable in turn."""
    gradients: tuple[Tensor | None, ...] = _Gradients.apply(upstream, *inputs, wanted, chunk_bytes)
    return gradients


NO_FORWARD_MODE = (
    "Forward-mode derivatives of the mixture loss are not available: use backend='reference'."
)


class _TokenLosses(Function):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        *fields, chunk_bytes, also = arguments
        inputs = Inputs(*fields)
        token_loss, _, found = stream(
            inputs, inputs.context.new_empty(0), NOTHING, chunk_bytes, also
        )
        return (token_loss, *(found[name] for name in also))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.logit_map, ctx.z_loss, ctx.chunk_bytes, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs = Inputs._make((*ctx.saved_tensors, ctx.logit_map, ctx.z_loss))
        wanted = Wanted(*ctx.needs_input_grad[:NUM_DIFFERENTIABLE])
        return (*gradients_of(inputs, upstream, wanted, ctx.chunk_bytes), *[None] * 9)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, ...]:
        return _one_by_one(_TokenLosses.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def jvp(*_: Any) -> Any:
        raise RuntimeError(NO_FORWARD_MODE)


class _Gradients(Function):
    """The backward pass as a function of its own, so that it has a derivative."""

    @staticmethod
    def forward(upstream: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
        *fields, wanted, chunk_bytes = arguments
        inputs = Inputs(*fields)
        _, gradients, _ = stream(inputs, upstream, wanted, chunk_bytes)
        return in_dtypes_of(inputs, gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.logit_map, ctx.z_loss, _, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, ...]:
        return _one_by_one(_Gradients.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def jvp(*_: Any) -> Any:
        raise RuntimeError(NO_FORWARD_MODE)

    @staticmethod
    def backward(ctx: Any, *upstreams: Any) -> tuple[Tensor | None, ...]:
        upstream, *tensors = ctx.saved_tensors
        given, rest = tensors[:NUM_DIFFERENTIABLE], tensors[NUM_DIFFERENTIABLE:]
        # Bias and extra terms may be missing; the rest are positions in `given`.
        present = [index for index, tensor in enumerate(given) if tensor is not None]
        tensors = [given[index] for index in present]

        def slow_losses(*tensors: Tensor) -> Tensor:
            fields = dict(zip(present, tensors, strict=True))
            found = (fields.get(index) for index in range(len(given)))
            return token_losses(Inputs._make((*found, *rest, ctx.logit_map, ctx.z_loss)))

        def slow_gradients(upstream: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vjp(slow_losses, *tensors)[1](upstream)

        pull_back = torch.func.vjp(slow_gradients, upstream, *tensors)[1]
        wanted = [upstreams[index] for index in present]
        pairs = zip(wanted, tensors, strict=True)
        first, *others = pull_back(tuple(torch.zeros_like(t) if u is None else u for u, t in pairs))
        second = dict(zip(present, others, strict=True))
        return (first, *(second.get(index) for index in range(len(given))), *[None] * 9)


def _one_by_one(
    function: Any, batch_size: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """The function of each element of a `torch.vmap` batch: weights and gradients may differ."""
    pairs = list(zip(arguments, in_dims, strict=True))
    each = (
        function(*(x.select(dim, index) if isinstance(dim, int) else x for x, dim in pairs))
        for index in range(batch_size)
    )
    found = zip(*each, strict=True)
    stacked = tuple(None if parts[0] is None else torch.stack(parts) for parts in found)
    return stacked, tuple(None if x is None else 0 for x in stacked)
