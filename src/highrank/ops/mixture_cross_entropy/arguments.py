"""What the façade checks before any work is done."""

import torch
from torch import Tensor

from highrank.ops.mixture_cross_entropy.targets import REDUCTIONS, Target
from highrank.ops.tracing import in_vmap, is_fake


def check_arguments(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Target,
    bias: Tensor | None,
    extra: tuple[Tensor, Tensor] | None,
    least_rows: int = 1,
) -> None:
    check_mixture(context, log_weight, weight, bias, least_rows)
    check_precision(context, weight, bias)
    check_target_shape(target, tuple(context.shape[:-2]))
    if extra is not None:
        if isinstance(target, tuple):
            raise ValueError("extra must come with target ids, got probabilities")
        _check_extra(*extra, target)


def check_target_shape(target: Target, leading: tuple[int, ...]) -> None:
    """Raise unless there is a target for each of the leading positions."""
    ids = target[0] if isinstance(target, tuple) else target
    if isinstance(target, tuple):
        _check_soft(*target, leading)
    else:
        _must_be("target", target, leading)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"target must have an integer dtype, got {ids.dtype}")


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")


def check_mixture(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    least_rows: int = 1,
) -> None:
    """Raise unless the shapes of a mixture fit together; a shard of a vocabulary may be empty."""
    if context.dim() < 2:
        raise ValueError(f"context must be (..., K, E), got {tuple(context.shape)}")
    *leading, K, E = context.shape
    if K < 1:
        raise ValueError(f"context must have at least one component, got {tuple(context.shape)}")
    _must_be("log_weight", log_weight, (*leading, K))
    if weight.dim() != 2 or weight.shape[1] != E or weight.shape[0] < least_rows:
        raise ValueError(f"weight must be (V, {E}) with V at least 1, got {tuple(weight.shape)}")
    if bias is not None:
        _must_be("bias", bias, (weight.shape[0],))


def check_precision(context: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless what enters the matrix multiply has one dtype."""
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != context.dtype:
            raise ValueError(f"{name} must be {context.dtype} as context is, got {tensor.dtype}")


def check_targets(target: Tensor, vocab_size: int) -> None:
    """Raise for the first target outside 0 … vocab_size - 1; on an accelerator, later."""
    if torch.compiler.is_compiling() or is_fake(target) or in_vmap() or not target.numel():
        return
    if not target.is_cpu:
        in_range = ((target >= 0) & (target < vocab_size)).all()
        # Without waiting for the device: the process learns of it at its next synchronisation.
        torch._assert_async(in_range, f"target must be in 0 … {vocab_size - 1}")
        return
    low, high = (int(x) for x in target.aminmax())
    if low < 0 or high >= vocab_size:
        value = target[(target < 0) | (target >= vocab_size)][0].item()
        raise ValueError(f"target must be in 0 … {vocab_size - 1} (V = {vocab_size}), got {value}")


def _check_soft(ids: Tensor, probability: Tensor, leading: tuple[int, ...]) -> None:
    if ids.shape != probability.shape or tuple(ids.shape[:-1]) != leading:
        raise ValueError(
            f"target must be ids and probabilities {(*leading, 'M')}, got {tuple(ids.shape)} and "
            f"{tuple(probability.shape)}"
        )
    if probability.requires_grad:
        raise ValueError("target probabilities must not require a gradient, got ones that do")


def _check_extra(log_weight: Tensor, log_prob: Tensor, target: Tensor) -> None:
    if log_prob.shape[:-1] != target.shape or log_weight.shape != log_prob.shape:
        raise ValueError(
            f"extra must be two tensors {(*target.shape, 'J')}, "
            f"got {tuple(log_weight.shape)} and {tuple(log_prob.shape)}"
        )


def _must_be(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
