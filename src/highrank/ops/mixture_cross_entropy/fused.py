"""Gradients in the forward pass: three matrix multiplies, one chunk of logits alive, no recompute.

For a reduced loss the upstream gradient is one number, so the gradients can be made while the
logits are at hand and scaled afterwards.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.loss.targets import reduce_losses, total_mass
from highrank.ops.mixture_cross_entropy.chunked import gradients_of
from highrank.ops.mixture_cross_entropy.reference import (
    NUM_DIFFERENTIABLE,
    NUM_TENSORS,
    Inputs,
    Losses,
    Request,
)
from highrank.ops.mixture_cross_entropy.stream import NOTHING, Wanted, in_dtypes_of, stream


def losses(inputs: Inputs, request: Request) -> Losses:
    # Asked here: `forward` runs without gradients, and needs_input_grad knows nothing of no_grad.
    in_training = torch.is_grad_enabled()
    token_loss, loss, *found = _Loss.apply(*inputs, request, in_training)
    return token_loss, loss, dict(zip(request.also, found, strict=True))


class _Loss(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *fields, request, in_training = arguments
        inputs = Inputs(*fields)
        needed = ctx.needs_input_grad[:NUM_DIFFERENTIABLE]
        token_loss, ctx.gradients, by_products = stream(
            inputs,
            _ones(inputs),
            Wanted(*needed) if in_training else NOTHING,
            request.chunk_bytes,
            request.also,
        )
        found = [by_products[name] for name in request.also]
        ctx.request, ctx.others = request, inputs[NUM_TENSORS:]
        ctx.save_for_backward(*inputs[:NUM_TENSORS], token_loss)
        ctx.mark_non_differentiable(token_loss, *found)
        return (token_loss, reduce_losses(token_loss, inputs.mass, request.reduction), *found)

    @staticmethod
    def backward(ctx: Any, _: Tensor, upstream: Tensor, *__: Any) -> tuple[Tensor | None, ...]:
        # Read once: hooks that offload or recompute do their work at every reading.
        *tensors, token_loss = ctx.saved_tensors
        inputs = Inputs._make((*tensors, *ctx.others))
        scale = _scale(ctx.request.reduction, token_loss, inputs.mass, upstream)
        if ctx.gradients is None or torch.is_grad_enabled():
            return (*_recomputed(ctx, inputs, scale), *[None] * 9)
        # Handed over, not copied: the weight's gradient may be the largest tensor of the model.
        gradients, ctx.gradients = ctx.gradients, None
        # The scale comes last: in half precision small factors would turn gradients into zeros.
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(scale)
        return (*in_dtypes_of(inputs, gradients), *[None] * 9)


def _recomputed(ctx: Any, inputs: Inputs, scale: Tensor) -> tuple[Tensor | None, ...]:
    """For a second backward pass through the same graph, or one that is to be differentiated."""
    wanted = Wanted(*ctx.needs_input_grad[:NUM_DIFFERENTIABLE])
    gradients = gradients_of(inputs, _ones(inputs), wanted, ctx.request.chunk_bytes)
    return tuple(g if g is None else (g * scale).to(g.dtype) for g in gradients)


def _scale(reduction: str, token_loss: Tensor, mass: Tensor | None, upstream: Tensor) -> Tensor:
    """What the gradients of the summed loss are multiplied with."""
    if reduction == "sum":
        return upstream
    total = total_mass(token_loss == torch.inf, mass)
    # Without any target the gradients are zero, and stay so.
    return upstream / torch.where(total == 0, 1, total)


def _ones(inputs: Inputs) -> Tensor:
    return inputs.log_weight.new_ones(1).expand(len(inputs.target))
