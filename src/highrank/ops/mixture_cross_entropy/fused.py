"""Gradients in the forward pass: three matrix multiplies, one chunk of logits alive, no recompute.

For a reduced loss the upstream gradient is one number, so the gradients can be made while the
logits are at hand and scaled afterwards.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.mixture_cross_entropy.chunked import gradients_of
from highrank.ops.mixture_cross_entropy.reference import num_possible, reduce
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
    # Asked here: `forward` runs without gradients, and needs_input_grad knows nothing of no_grad.
    in_training = torch.is_grad_enabled()
    token_loss, loss = _Loss.apply(
        context, log_weight, weight, bias, target, softcap, reduction, chunk_bytes, in_training
    )
    return token_loss, loss


class _Loss(Function):
    @staticmethod
    def forward(
        ctx: Any,
        context: Tensor,
        log_weight: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        softcap: float | None,
        reduction: str,
        chunk_bytes: int | None,
        in_training: bool,
    ) -> tuple[Tensor, Tensor]:
        inputs = Inputs(context, log_weight, weight, bias, target, softcap)
        wanted = Wanted(*ctx.needs_input_grad[:4]) if in_training else NOTHING
        ones = log_weight.new_ones(1).expand(len(target))
        token_loss, ctx.gradients = stream(inputs, ones, wanted, chunk_bytes)
        ctx.reduction, ctx.chunk_bytes, ctx.softcap = reduction, chunk_bytes, softcap
        ctx.save_for_backward(context, log_weight, weight, bias, target, token_loss)
        ctx.mark_non_differentiable(token_loss)
        return token_loss, reduce(token_loss, reduction)

    @staticmethod
    def backward(ctx: Any, _: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None or torch.is_grad_enabled():
            return (*_recomputed(ctx, upstream), *[None] * 5)
        # Handed over, not copied: the weight's gradient may be the largest tensor of the model.
        gradients, ctx.gradients = ctx.gradients, None
        # The scale comes last: in half precision small factors would turn gradients into zeros.
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(_scale(ctx, upstream))
        return (*in_dtypes_of(_inputs(ctx), gradients), *[None] * 5)


def _recomputed(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """For a second backward pass through the same graph, or one that is to be differentiated."""
    inputs, wanted = _inputs(ctx), Wanted(*ctx.needs_input_grad[:4])
    ones = inputs.log_weight.new_ones(1).expand(len(inputs.target))
    gradients, scale = gradients_of(inputs, ones, wanted, ctx.chunk_bytes), _scale(ctx, upstream)
    return tuple(g if g is None else (g * scale).to(g.dtype) for g in gradients)


def _scale(ctx: Any, upstream: Tensor) -> Tensor:
    """What the gradients of the summed loss are multiplied with."""
    if ctx.reduction == "sum":
        return upstream
    # Without any target the gradients are zero, and stay so.
    return upstream / num_possible(ctx.saved_tensors[-1] == torch.inf).clamp(min=1)


def _inputs(ctx: Any) -> Inputs:
    context, log_weight, weight, bias, target, _ = ctx.saved_tensors
    return Inputs(context, log_weight, weight, bias, target, ctx.softcap)
