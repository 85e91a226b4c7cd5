"""The chunk engine as functions of autograd: the backends `fused` and `chunked`.

`fused` makes the gradients in the forward pass: for a reduced loss the upstream gradient is one
number, so they can be made while the logits are at hand and scaled afterwards. That takes three
matrix multiplies, with one chunk of logits alive.

`chunked` recomputes in the backward pass, with four multiplies: for any upstream gradient,
`torch.func.grad` and second derivatives, which go through the reference, with its memory.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.loss.targets import reduce_losses, total_mass
from highrank.ops.mixture_cross_entropy.reducer import ONE_PROCESS, Reducer
from highrank.ops.mixture_cross_entropy.reference import Inputs, Losses, Request, token_losses
from highrank.ops.mixture_cross_entropy.stream import Gradients, finish_gradients, stream
from highrank.ops.precision import without_autocast

NUM_DIFFERENTIABLE = len(Gradients._fields)
NO_GRADIENTS = (False,) * NUM_DIFFERENTIABLE


def fused_losses(inputs: Inputs, request: Request, reducer: Reducer = ONE_PROCESS) -> Losses:
    # Asked here: `forward` runs without gradients, and needs_input_grad knows nothing of no_grad.
    in_training = torch.is_grad_enabled()
    token_loss, loss, *found = _FusedLoss.apply(*inputs, request, reducer, in_training)
    return token_loss, loss, dict(zip(request.also, found, strict=True))


def chunked_losses(inputs: Inputs, request: Request, reducer: Reducer = ONE_PROCESS) -> Losses:
    token_loss, *others = _TokenLosses.apply(*inputs, request.chunk_bytes, request.also, reducer)
    found = dict(zip(request.also, others, strict=True))
    if request.reduction == "none":
        return token_loss, token_loss, found
    return token_loss.detach(), reduce_losses(token_loss, inputs.mass, request.reduction), found


class _FusedLoss(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *fields, request, reducer, in_training = arguments
        inputs = Inputs(*fields)
        token_loss, ctx.gradients, by_products = stream(
            inputs,
            _ones(inputs),
            _wanted(ctx) if in_training else NO_GRADIENTS,
            request.chunk_bytes,
            request.also,
            reducer,
        )
        found = [by_products[name] for name in request.also]
        ctx.request, ctx.reducer = request, reducer
        _save(ctx, inputs, token_loss)
        ctx.mark_non_differentiable(token_loss, *found)
        return (token_loss, reduce_losses(token_loss, inputs.mass, request.reduction), *found)

    @staticmethod
    def backward(ctx: Any, _: Tensor, upstream: Tensor, *__: Any) -> tuple[Tensor | None, ...]:
        # Read once: hooks that offload or recompute do their work at every reading.
        *tensors, token_loss = ctx.saved_tensors
        inputs = Inputs(*tensors, *ctx.constants)
        if ctx.request.reduction == "mean":
            total = total_mass(token_loss == torch.inf, inputs.mass)
            # Without any target the gradients are zero.
            upstream = upstream / torch.where(total == 0, torch.inf, total)
        if ctx.gradients is None or torch.is_grad_enabled():
            # A second backward pass through the same graph, or one that is to be differentiated.
            options = _wanted(ctx), ctx.request.chunk_bytes, ctx.reducer
            found = gradients_of(inputs, _ones(inputs), *options)
            return pad_gradients(
                ctx, [g if g is None else (g * upstream).to(g.dtype) for g in found]
            )
        # Handed over, not copied: the weight's gradient may be the largest tensor of the model.
        gradients, ctx.gradients = ctx.gradients, None
        # The scale comes last: in half precision small factors would turn gradients into zeros.
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(upstream)
        return pad_gradients(ctx, finish_gradients(inputs, gradients, ctx.reducer))


class _TokenLosses(Function):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        *fields, chunk_bytes, also, reducer = arguments
        inputs = Inputs(*fields)
        none = inputs.context.new_empty(0)
        token_loss, _, found = stream(inputs, none, NO_GRADIENTS, chunk_bytes, also, reducer)
        return (token_loss, *(found[name] for name in also))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *fields, ctx.chunk_bytes, _, ctx.reducer = inputs
        _save(ctx, Inputs(*fields))
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs = Inputs(*ctx.saved_tensors, *ctx.constants)
        options = _wanted(ctx), ctx.chunk_bytes, ctx.reducer
        return pad_gradients(ctx, gradients_of(inputs, upstream, *options))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, ...]:
        return _one_by_one(_TokenLosses.apply, info.batch_size, in_dims, arguments)


def gradients_of(
    inputs: Inputs,
    upstream: Tensor,
    wanted: Sequence[bool],
    chunk_bytes: int | None,
    reducer: Reducer,
) -> tuple[Tensor | None, ...]:
    """The wanted gradients of Σ upstream · token loss, recomputed, and differentiable in turn."""
    if torch.is_grad_enabled() and not reducer.is_trivial:
        raise RuntimeError("Second derivatives of a sharded loss are not available.")
    options = wanted, chunk_bytes, reducer.replay()
    found: tuple[Tensor | None, ...] = _Gradients.apply(upstream, *inputs, *options)
    return found


class _Gradients(Function):
    """The backward pass as a function of its own, so that it has a derivative."""

    @staticmethod
    def forward(upstream: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
        *fields, wanted, chunk_bytes, reducer = arguments
        inputs = Inputs(*fields)
        with without_autocast(upstream.device):
            gradients = stream(inputs, upstream, wanted, chunk_bytes, reducer=reducer)[1]
        return finish_gradients(inputs, gradients, reducer)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        upstream, *fields, _, _, _ = inputs
        _save(ctx, Inputs(*fields), upstream)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, ...]:
        return _one_by_one(_Gradients.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def backward(ctx: Any, *upstreams: Any) -> tuple[Tensor | None, ...]:
        *tensors, upstream = ctx.saved_tensors
        given, rest = tensors[:NUM_DIFFERENTIABLE], tensors[NUM_DIFFERENTIABLE:]
        # Bias and extra terms may be missing; the rest are positions in `given`.
        present = [index for index, tensor in enumerate(given) if tensor is not None]
        tensors = [given[index] for index in present]

        def slow_losses(*tensors: Tensor) -> Tensor:
            fields = dict(zip(present, tensors, strict=True))
            found = (fields.get(index) for index in range(len(given)))
            return token_losses(Inputs._make((*found, *rest, *ctx.constants)))

        def slow_gradients(upstream: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vjp(slow_losses, *tensors)[1](upstream)

        pull_back = torch.func.vjp(slow_gradients, upstream, *tensors)[1]
        wanted = [upstreams[index] for index in present]
        pairs = zip(wanted, tensors, strict=True)
        first, *others = pull_back(tuple(torch.zeros_like(t) if u is None else u for u, t in pairs))
        second = dict(zip(present, others, strict=True))
        return pad_gradients(ctx, [first, *(second.get(index) for index in range(len(given)))])


def _ones(inputs: Inputs) -> Tensor:
    return inputs.log_weight.new_ones(1).expand(len(inputs.target))


def _save(ctx: Any, inputs: Inputs, *others: Tensor) -> None:
    ctx.constants = inputs.constants
    ctx.save_for_backward(*inputs.tensors, *others)


def _wanted(ctx: Any) -> tuple[bool, ...]:
    wanted: tuple[bool, ...] = ctx.needs_input_grad[:NUM_DIFFERENTIABLE]
    return wanted


def pad_gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients, and None for the arguments that come after the differentiable ones."""
    return (*gradients, *repeat(None, len(ctx.needs_input_grad) - len(gradients)))


def _one_by_one(
    function: Any, batch_size: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Results of the function for each element of a `torch.vmap` batch: weights may differ."""
    pairs = list(zip(arguments, in_dims, strict=True))
    each = (
        function(*(x.select(dim, index) if isinstance(dim, int) else x for x, dim in pairs))
        for index in range(batch_size)
    )
    found = zip(*each, strict=True)
    stacked = tuple(None if parts[0] is None else torch.stack(parts) for parts in found)
    return stacked, tuple(None if x is None else 0 for x in stacked)
