"""What the façade checks before any work is done."""

import torch
from torch import Tensor

from highrank.ops.mixture_cross_entropy.reference import REDUCTIONS


def check_arguments(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    extra: tuple[Tensor, Tensor] | None,
    chunk_bytes: int | None,
) -> None:
    check_mixture(context, log_weight, weight, bias)
    check_precision(context, weight, bias)
    _must_be("target", target, tuple(context.shape[:-2]))
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(f"target must have an integer dtype, got {target.dtype}")
    if extra is not None:
        _check_extra(*extra, target)
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")


def check_mixture(context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless the shapes of a mixture fit together."""
    if context.dim() < 2:
        raise ValueError(f"context must be (..., K, E), got {tuple(context.shape)}")
    *leading, K, E = context.shape
    if K < 1:
        raise ValueError(f"context must have at least one component, got {tuple(context.shape)}")
    _must_be("log_weight", log_weight, (*leading, K))
    if weight.dim() != 2 or weight.shape[1] != E or weight.shape[0] < 1:
        raise ValueError(f"weight must be (V, {E}) with V at least 1, got {tuple(weight.shape)}")
    if bias is not None:
        _must_be("bias", bias, (weight.shape[0],))


def check_precision(context: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless what enters the matrix multiply has one dtype."""
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != context.dtype:
            raise ValueError(f"{name} must be {context.dtype} as context is, got {tensor.dtype}")


def check_targets(target: Tensor, vocab_size: int) -> None:
    """Raise for the first target outside 0 … vocab_size - 1."""
    wrong = ((target < 0) | (target >= vocab_size)).nonzero()
    if len(wrong):
        value = target[wrong[0, 0]].item()
        raise ValueError(f"target must be in 0 … {vocab_size - 1} (V = {vocab_size}), got {value}")


def _check_extra(log_weight: Tensor, log_prob: Tensor, target: Tensor) -> None:
    if log_prob.shape[:-1] != target.shape or log_weight.shape != log_prob.shape:
        raise ValueError(
            f"extra must be two tensors {(*target.shape, 'J')}, "
            f"got {tuple(log_weight.shape)} and {tuple(log_prob.shape)}"
        )


def _must_be(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
