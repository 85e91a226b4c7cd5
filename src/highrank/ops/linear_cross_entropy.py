"""A softmax's cross-entropy from hidden states: one component of the mixture loss.

    -log softmax(linear_weight @ input + linear_bias)[target]

The arguments are those of `torch.nn.functional.linear_cross_entropy` (2.13), on any torch, with
further options, and without its `options`, which turn chunks on: here they always are, of
`chunk_bytes`. N tokens, E size, V vocabulary.
"""

import math
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.ops.loss import REDUCTIONS, LossOptions, Reduction, Target
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.precision import at_least_float32
from highrank.ops.sharding import is_distributed
from highrank.ops.tracing import is_static

# A table of logits that fits a core's cache is not worth chunks: torch's two calls are faster.
SMALL_BYTES = 2**20


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Target,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    ignore_index: int | None = -100,
    **options: Unpack[LossOptions],
) -> Tensor:
    """The cross-entropy of softmax(linear_weight @ input + linear_bias), without N × V logits.

    Torch's function of this name also has `options`, by which it works in chunks. This one always
    does; `backend` and `chunk_bytes` say how.

    Args:
        input: (..., E).
        linear_weight: (V, E).
        target: (...), integers below V, or `ignore_index`; probabilities (..., V); or ids and
            probabilities, each (..., M).
        linear_bias: (V,).
        weight: (V,), the weight of each class, as `F.cross_entropy` has it.
        reduction: "mean" over the targets that are not ignored, "sum", or "none".
        ignore_index: a target that counts for nothing; None is -100.
        options: as of `mixture_cross_entropy`: label_smoothing, logit_map, logit_scale,
            token_weight, z_loss, shift, group, shard, backend, chunk_bytes.
    """
    if "options" in options:
        raise ValueError("options must be left out, got some: backend and chunk_bytes are theirs")
    for name, own in (("class_weight", "weight"), ("bias", "linear_bias")):
        if name in options:
            raise ValueError(f"{name} must be left out, got one: its name here is {own}")
    ignore_index = -100 if ignore_index is None else ignore_index
    if isinstance(target, Tensor) and target.is_floating_point():
        target = _dense_target(target, len(linear_weight), weight, options)
        # It is for ids: all classes of a probability count.
        ignore_index, weight = -100, None
    is_plain = not options and input.dim() == 2
    if is_plain and isinstance(target, Tensor):
        tensors = (input, linear_weight, target, linear_bias, weight)
        found = small_loss(*tensors, reduction, ignore_index)
        if found is not None:
            return found[1]
    return mixture_cross_entropy(
        input.unsqueeze(-2),
        input.new_zeros((*input.shape[:-1], 1), dtype=at_least_float32(input.dtype)),
        linear_weight,
        target,
        bias=linear_bias,
        reduction=reduction,
        ignore_index=ignore_index,
        **(options if weight is None else {**options, "class_weight": weight}),
    )


def _dense_target(
    probability: Tensor, vocab_size: int, weight: Tensor | None, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """Ids and probabilities (..., V) of a target of probabilities, weighted and smoothed."""
    if probability.dim() < 1 or probability.shape[-1] != vocab_size:
        found = tuple(probability.shape)
        raise ValueError(f"target probabilities must be (..., {vocab_size}), got {found}")
    if epsilon := options.pop("label_smoothing", 0.0):
        probability = (1 - epsilon) * probability + epsilon / vocab_size
    if weight is not None:
        probability = probability * weight
    ids = torch.arange(vocab_size, device=probability.device)
    return ids.expand(probability.shape), probability


def small_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: Reduction,
    ignore_index: int,
) -> tuple[Tensor, Tensor] | None:
    """The loss of each target (...) and the reduced loss, by torch's functions.

    That of each target is detached unless `reduction` is "none". None where chunks are faster,
    where torch would raise in other words, and with an impossible target, which would get a
    gradient.
    """
    has_gradient = weight is not None and weight.requires_grad
    if target.shape != input.shape[:-1] or reduction not in REDUCTIONS or has_gradient:
        return None
    if not _is_small(input, linear_weight):
        return None
    ids = target.reshape(-1).long()  # (N,)
    logits = F.linear(input, linear_weight, linear_bias)
    log_p = logits.log_softmax(-1).view(len(ids), len(linear_weight))
    how: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index}
    try:
        loss = F.nll_loss(log_p, ids, reduction=reduction, **how)
    except IndexError:
        return None
    token_loss = F.nll_loss(log_p.detach(), ids, reduction="none", **how)
    if not token_loss.isfinite().all():
        return None
    if reduction == "none":
        loss = token_loss = loss.view(target.shape)
    return token_loss.view(target.shape), loss


def _is_small(input: Tensor, weight: Tensor) -> bool:
    """Whether all logits together are no more than a small chunk, in full precision on a CPU."""
    if is_static(input) or is_distributed(weight):
        return False
    num_logits = math.prod(input.shape[:-1]) * len(weight)
    if num_logits * input.itemsize > SMALL_BYTES or input.dtype != weight.dtype:
        return False
    is_full = input.dtype in (torch.float32, torch.float64)
    return is_full and not torch.is_autocast_enabled("cpu")
