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
from highrank.ops.mixture_cross_entropy.autograd import NO_GRADIENTS, pad_gradients
from highrank.ops.mixture_cross_entropy.reference import Inputs, Losses, Request
from highrank.ops.mixture_cross_entropy.stream import Gradients, finish_gradients, stream
from highrank.ops.precision import at_least_float32

# An operator takes tensors and numbers only: a map goes in as its name and its fields.
LOGIT_MAPS: dict[str, type] = {
    "Softcap": Softcap,
    "GeneralizedSigsoftmax": GeneralizedSigsoftmax,
}
DIFFERENTIABLE = "Tensor context, Tensor log_weight, Tensor weight, Tensor? bias, Tensor? extra"
OTHERS = "Tensor target, Tensor? amount, Tensor? smoothing, Tensor? token_weight, Tensor? mass"
CONSTANTS = "str logit_map, float[] map_values, float z_loss, SymInt? chunk_bytes"
INPUTS = f"{DIFFERENTIABLE}, {OTHERS}, {CONSTANTS}"
GRADIENTS = "Tensor, Tensor, Tensor, Tensor, Tensor"


def losses(inputs: Inputs, request: Request) -> Losses:
    if request.also:
        raise ValueError(f"also must be empty while compiling, got {list(request.also)}")
    name, values = _encode_map(inputs.logit_map)
    arguments = (*inputs.tensors, name, values, inputs.z_loss, request.chunk_bytes)
    if request.reduction == "none":
        token_loss: Tensor = mixture_token_loss(*arguments)
        return token_loss, token_loss, {}
    given: Sequence[Any] = inputs.differentiable
    in_training = torch.is_grad_enabled()
    wanted = [in_training and x is not None and x.requires_grad for x in given]
    loss, token_loss, *_ = mixture_reduced_loss(*arguments, request.reduction, wanted)
    return token_loss.detach(), loss, {}


@torch.library.custom_op(
    "highrank::mixture_token_loss", mutates_args=(), schema=f"({INPUTS}) -> Tensor"
)
def mixture_token_loss(*arguments: Any) -> Tensor:
    """The loss of each token (N,)."""
    inputs, chunk_bytes = _decode(arguments)
    return stream(inputs, inputs.context.new_empty(0), NO_GRADIENTS, chunk_bytes)[0]


@torch.library.custom_op(
    "highrank::mixture_gradients",
    mutates_args=(),
    schema=f"(Tensor upstream, {INPUTS}, bool[] wanted) -> ({GRADIENTS})",
)
def mixture_gradients(upstream: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The gradients of Σ upstream · loss; empty where none is wanted."""
    inputs, chunk_bytes = _decode(arguments[:-1])
    gradients = stream(inputs, upstream, arguments[-1], chunk_bytes)[1]
    return _without_none(inputs, gradients)


@torch.library.custom_op(
    "highrank::mixture_reduced_loss",
    mutates_args=(),
    schema=f"({INPUTS}, str reduction, bool[] wanted) -> (Tensor, Tensor, Tensor, {GRADIENTS})",
)
def mixture_reduced_loss(*arguments: Any) -> tuple[Tensor, ...]:
    """The reduced loss, the loss of each token (N,), the divisor of the loss, gradients.

    The gradients are those of the summed loss: in half precision small factors, applied here,
    would turn them into zeros.
    """
    *others, reduction, wanted = arguments
    inputs, chunk_bytes = _decode(others)
    ones = inputs.log_weight.new_ones(1).expand(len(inputs.target))
    token_loss, gradients, _ = stream(inputs, ones, wanted, chunk_bytes)
    total = token_loss.new_ones(())
    if reduction == "mean":
        total = total_mass(token_loss == torch.inf, inputs.mass).to(total.dtype)
        # Without any target the gradients are zero.
        total = torch.where(total == 0, torch.inf, total)
    loss = reduce_losses(token_loss, inputs.mass, reduction)
    return (loss, token_loss, total, *_without_none(inputs, gradients))


def _without_none(inputs: Inputs, gradients: Gradients) -> tuple[Tensor, ...]:
    """The gradients in the precision of what they belong to; empty instead of None."""
    found = finish_gradients(inputs, gradients)
    return tuple(inputs.context.new_empty(0) if g is None else g for g in found)


@mixture_token_loss.register_fake
def _(context: Tensor, *_: Any) -> Tensor:
    return context.new_empty(context.shape[0], dtype=at_least_float32(context.dtype))


def _fake_gradients(arguments: Sequence[Any]) -> tuple[Tensor, ...]:
    context, wanted = arguments[0], arguments[-1]
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format)
        if want and x is not None
        else context.new_empty(0)
        for x, want in zip(arguments, wanted, strict=False)
    )


@mixture_gradients.register_fake
def _(upstream: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(arguments)


@mixture_reduced_loss.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    context = arguments[0]
    dtype = at_least_float32(context.dtype)
    loss, total = context.new_empty((), dtype=dtype), context.new_empty((), dtype=dtype)
    token_loss = context.new_empty(context.shape[0], dtype=dtype)
    return (loss, token_loss, total, *_fake_gradients(arguments))


def _save_all(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, name, values, z_loss, chunk_bytes = inputs
    ctx.constants = name, values, z_loss, chunk_bytes
    ctx.save_for_backward(*tensors)


def _recompute(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[: len(Gradients._fields)])
    found = mixture_gradients(upstream, *ctx.saved_tensors, *ctx.constants, wanted)
    return pad_gradients(ctx, [g if want else None for g, want in zip(found, wanted, strict=True)])


mixture_token_loss.register_autograd(_recompute, setup_context=_save_all)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.wanted = inputs[-1]
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
    return pad_gradients(ctx, gradients)


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


def _encode_map(logit_map: LogitMap | None) -> tuple[str, list[float]]:
    if logit_map is None:
        return "", []
    kind = type(logit_map)
    if not dataclasses.is_dataclass(logit_map):
        raise ValueError(
            f"logit_map must be a dataclass of numbers to be compiled, got {kind.__name__}"
        )
    LOGIT_MAPS.setdefault(kind.__name__, kind)
    return kind.__name__, [float(value) for value in dataclasses.astuple(logit_map)]


def _decode(arguments: Sequence[Any]) -> tuple[Inputs, int | None]:
    """The inputs, and `chunk_bytes`."""
    *tensors, name, values, z_loss, chunk_bytes = arguments
    logit_map = LOGIT_MAPS[name](*values) if name else None
    return Inputs._make((*tensors, logit_map, z_loss)), chunk_bytes
