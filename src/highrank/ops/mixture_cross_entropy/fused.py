"""Gradients in the forward pass: three matrix multiplies, one chunk of logits alive, no recompute.

For a reduced loss the upstream gradient is one number, so the gradients can be made while the
logits are at hand and scaled afterwards.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.mixture_cross_entropy.chunked import gradients_of
from highrank.ops.mixture_cross_entropy.reference import Inputs, num_possible, reduce
from highrank.ops.mixture_cross_entropy.stream import NOTHING, Wanted, in_dtypes_of, stream


def losses(inputs: Inputs, reduction: str, chunk_bytes: int | None) -> tuple[Tensor, Tensor]:
    # Asked here: `forward` runs without gradients, and needs_input_grad knows nothing of no_grad.
    in_training = torch.is_grad_enabled()
    token_loss, loss = _Loss.apply(*inputs, reduction, chunk_bytes, in_training)
    return token_loss, loss


class _Loss(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *fields, reduction, chunk_bytes, in_training = arguments
        inputs = Inputs(*fields)
        wanted = Wanted(*ctx.needs_input_grad[:5]) if in_training else NOTHING
        token_loss, ctx.gradients = stream(inputs, _ones(inputs), wanted, chunk_bytes)
        ctx.reduction, ctx.chunk_bytes, ctx.logit_map = reduction, chunk_bytes, inputs.logit_map
        ctx.save_for_backward(*inputs[:-1], token_loss)
        ctx.mark_non_differentiable(token_loss)
        return token_loss, reduce(token_loss, reduction)

    @staticmethod
    def backward(ctx: Any, _: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: hooks that offload or recompute do their work at every reading.
        *tensors, token_loss = ctx.saved_tensors
        inputs = Inputs._make((*tensors, ctx.logit_map))
        scale = _scale(ctx.reduction, token_loss, upstream)
        if ctx.gradients is None or torch.is_grad_enabled():
            return (*_recomputed(ctx, inputs, scale), *[None] * 5)
        # Handed over, not copied: the weight's gradient may be the largest tensor of the model.
        gradients, ctx.gradients = ctx.gradients, None
        # The scale comes last: in half precision small factors would turn gradients into zeros.
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(scale)
        return (*in_dtypes_of(inputs, gradients), *[None] * 5)


def _recomputed(ctx: Any, inputs: Inputs, scale: Tensor) -> tuple[Tensor | None, ...]:
    """For a second backward pass through the same graph, or one that is to be differentiated."""
    wanted = Wanted(*ctx.needs_input_grad[:5])
    gradients = gradients_of(inputs, _ones(inputs), wanted, ctx.chunk_bytes)
    return tuple(g if g is None else (g * scale).to(g.dtype) for g in gradients)


def _scale(reduction: str, token_loss: Tensor, upstream: Tensor) -> Tensor:
    """What the gradients of the summed loss are multiplied with."""
    if reduction == "sum":
        return upstream
    # Without any target the gradients are zero, and stay so.
    return upstream / num_possible(token_loss == torch.inf).clamp(min=1)


def _ones(inputs: Inputs) -> Tensor:
    return inputs.log_weight.new_ones(1).expand(len(inputs.target))
