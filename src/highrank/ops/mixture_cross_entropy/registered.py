"""The loss as operators that torch.compile, torch.export, fake tensors and flop counters know.

To them it is opaque: one node with known shapes. Inside, the same stream of chunks runs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from highrank.ops.logit_map import GeneralizedSigsoftmax, LogitMap, Softcap
from highrank.ops.loss.targets import reduce_losses, total_mass
from highrank.ops.mixture_cross_entropy.reference import (
    NUM_DIFFERENTIABLE,
    NUM_TENSORS,
    Inputs,
    Losses,
    Request,
)
from highrank.ops.mixture_cross_entropy.stream import NOTHING, Gradients, Wanted, stream
from highrank.ops.precision import at_least_float32

# An operator takes tensors and numbers only: a map goes in as its name and its fields.
LOGIT_MAPS: dict[str, type] = {
    "Softcap": Softcap,
    "GeneralizedSigsoftmax": GeneralizedSigsoftmax,
}


def losses(inputs: Inputs, request: Request) -> Losses:
    if request.also:
        raise ValueError(f"also must be empty while compiling, got {list(request.also)}")
    name, values = _encoded(inputs.logit_map)
    arguments = (*inputs[:NUM_TENSORS], name, values, inputs.z_loss, request.chunk_bytes)
    if request.reduction == "none":
        token_loss = mixture_token_loss(*arguments)
        return token_loss, token_loss, {}
    in_training = torch.is_grad_enabled()
    given: Sequence[Any] = inputs[:NUM_DIFFERENTIABLE]
    wanted = [in_training and x is not None and x.requires_grad for x in given]
    loss, token_loss, *_ = mixture_reduced_loss(*arguments, request.reduction, wanted)
    return token_loss.detach(), loss, {}


@torch.library.custom_op("highrank::mixture_token_loss", mutates_args=())
def mixture_token_loss(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extra: Tensor | None,
    target: Tensor,
    amount: Tensor | None,
    smoothing: Tensor | None,
    token_weight: Tensor | None,
    mass: Tensor | None,
    logit_map: str,
    map_values: Sequence[float],
    z_loss: float,
    chunk_bytes: int | None,
) -> Tensor:
    """The loss of each token (N,)."""
    tensors = (context, log_weight, weight, bias, extra, target, amount, smoothing)
    decoded = _decoded(logit_map, map_values)
    inputs = Inputs._make((*tensors, token_weight, mass, decoded, z_loss))
    return stream(inputs, context.new_empty(0), NOTHING, chunk_bytes)[0]


@torch.library.custom_op("highrank::mixture_gradients", mutates_args=())
def mixture_gradients(
    upstream: Tensor,
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extra: Tensor | None,
    target: Tensor,
    amount: Tensor | None,
    smoothing: Tensor | None,
    token_weight: Tensor | None,
    mass: Tensor | None,
    logit_map: str,
    map_values: Sequence[float],
    z_loss: float,
    chunk_bytes: int | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of Σ upstream · loss; empty where none is wanted."""
    tensors = (context, log_weight, weight, bias, extra, target, amount, smoothing)
    decoded = _decoded(logit_map, map_values)
    inputs = Inputs._make((*tensors, token_weight, mass, decoded, z_loss))
    gradients = stream(inputs, upstream, Wanted(*wanted), chunk_bytes)[1]
    return _filled(inputs, gradients)


@torch.library.custom_op("highrank::mixture_reduced_loss", mutates_args=())
def mixture_reduced_loss(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extra: Tensor | None,
    target: Tensor,
    amount: Tensor | None,
    smoothing: Tensor | None,
    token_weight: Tensor | None,
    mass: Tensor | None,
    logit_map: str,
    map_values: Sequence[float],
    z_loss: float,
    chunk_bytes: int | None,
    reduction: str,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The reduced loss, the loss of each token (N,), what the loss was divided by, gradients.

    The gradients are those of the summed loss: in half precision small factors, applied here,
    would turn them into zeros.
    """
    tensors = (context, log_weight, weight, bias, extra, target, amount, smoothing)
    decoded = _decoded(logit_map, map_values)
    inputs = Inputs._make((*tensors, token_weight, mass, decoded, z_loss))
    ones = log_weight.new_ones(1).expand(len(target))
    token_loss, gradients, _ = stream(inputs, ones, Wanted(*wanted), chunk_bytes)
    total = token_loss.new_ones(())
    if reduction == "mean":
        total = total_mass(token_loss == torch.inf, mass).to(total.dtype)
        total = torch.where(total == 0, 1.0, total)
    loss = reduce_losses(token_loss, mass, reduction)
    return (loss, token_loss, total, *_filled(inputs, gradients))


def _filled(inputs: Inputs, gradients: Gradients) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients in the precision of what they belong to; empty instead of None."""
    none = inputs.context.new_empty(0)
    given: Sequence[Any] = inputs[:NUM_DIFFERENTIABLE]
    found = [
        none.clone() if gradient is None else gradient.to(x.dtype)
        for gradient, x in zip(gradients, given, strict=True)
    ]
    return (found[0], found[1], found[2], found[3], found[4])


@mixture_token_loss.register_fake
def _(context: Tensor, *_: Any) -> Tensor:
    return context.new_empty(context.shape[0], dtype=at_least_float32(context.dtype))


def _fake_gradients(tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor]:
    context = tensors[0]
    assert context is not None
    none = context.new_empty(0)
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        if want and x is not None
        else torch.empty_like(none)
        for x, want in zip(tensors, wanted, strict=True)
    ]


@mixture_gradients.register_fake
def _(upstream: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(_fake_gradients(arguments[:NUM_DIFFERENTIABLE], arguments[-1]))


@mixture_reduced_loss.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    context = arguments[0]
    dtype = at_least_float32(context.dtype)
    loss, total = context.new_empty((), dtype=dtype), context.new_empty((), dtype=dtype)
    token_loss = context.new_empty(context.shape[0], dtype=dtype)
    return (
        loss,
        token_loss,
        total,
        *_fake_gradients(arguments[:NUM_DIFFERENTIABLE], arguments[-1]),
    )


def _save_all(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.others = inputs[NUM_TENSORS:]
    ctx.save_for_backward(*inputs[:NUM_TENSORS])


def _recompute(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:NUM_DIFFERENTIABLE])
    found = mixture_gradients(upstream, *ctx.saved_tensors, *ctx.others, wanted)
    gradients = [g if want else None for g, want in zip(found, wanted, strict=True)]
    return (*gradients, *[None] * (NUM_TENSORS - NUM_DIFFERENTIABLE + len(ctx.others)))


mixture_token_loss.register_autograd(_recompute, setup_context=_save_all)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.num_inputs, ctx.wanted = len(inputs), inputs[-1]
    ctx.save_for_backward(*output[2:])


def _hand_over(ctx: Any, upstream: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    if any(other is not None for other in others):
        raise RuntimeError(
            "Second derivatives of a compiled loss are not available: use backend='chunked'."
        )
    total, *found = ctx.saved_tensors
    gradients = [
        (g * (upstream / total)).to(g.dtype) if want and upstream is not None else None
        for g, want in zip(found, ctx.wanted, strict=True)
    ]
    return (*gradients, *[None] * (ctx.num_inputs - NUM_DIFFERENTIABLE))


mixture_reduced_loss.register_autograd(_hand_over, setup_context=_save_gradients)


def _flops(context: Any, weight: Any, num_products: int) -> int:
    N, K, E = context
    return int(2 * N * K * E * weight[0] * num_products)


@register_flop_formula([torch.ops.highrank.mixture_token_loss])
def _(context: Any, log_weight: Any, weight: Any, *_: Any, **__: Any) -> int:
    return _flops(context, weight, 1)


@register_flop_formula([torch.ops.highrank.mixture_gradients])
def _(upstream: Any, context: Any, log_weight: Any, weight: Any, *_: Any, **__: Any) -> int:
    return _flops(context, weight, 3)


@register_flop_formula([torch.ops.highrank.mixture_reduced_loss])
def _(context: Any, log_weight: Any, weight: Any, *others: Any, **__: Any) -> int:
    wanted = others[-1]
    return _flops(context, weight, 1 + wanted[0] + wanted[2])


def _encoded(logit_map: LogitMap | None) -> tuple[str, list[float]]:
    if logit_map is None:
        return "", []
    kind = type(logit_map)
    if not dataclasses.is_dataclass(logit_map):
        raise ValueError(
            f"logit_map must be a dataclass of numbers to be compiled, got {kind.__name__}"
        )
    LOGIT_MAPS.setdefault(kind.__name__, kind)
    return kind.__name__, [float(value) for value in dataclasses.astuple(logit_map)]


def _decoded(name: str, values: Sequence[float]) -> LogitMap | None:
    return LOGIT_MAPS[name](*values) if name else None
