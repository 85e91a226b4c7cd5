"""Cross-entropy of a mixture of softmaxes: one public function, several backends.

    -log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target]

The derivation and the bytes each backend needs are in this folder's README.md.
N tokens, K components, E embedding size, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.logit_map import LogitMap
from highrank.ops.mixture_cross_entropy import chunked, fused, reference
from highrank.ops.mixture_cross_entropy.arguments import (
    check_arguments,
    check_reduction,
    check_targets,
)
from highrank.ops.mixture_cross_entropy.reference import Inputs
from highrank.ops.numerics import at_least_float32, in_autocast_dtype, without_autocast

# Each takes flat tensors without ignored targets and returns the losses of the tokens and the
# reduced loss, in one pass.
BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": reference.losses,
    "chunked": chunked.losses,
    "fused": fused.losses,
}


class MixtureLoss(NamedTuple):
    """The loss of each token, 0 where the target is ignored, and the reduced loss."""

    token_loss: Tensor
    loss: Tensor


def mixture_loss(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    extra: tuple[Tensor, Tensor] | None = None,
    logit_map: LogitMap | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    backend: str = "auto",
    chunk_bytes: int | None = None,
) -> MixtureLoss:
    """As `mixture_cross_entropy`, and the loss of each token from the same pass.

    Gradients flow through `loss`; `token_loss` is detached unless `reduction` is "none".
    """
    check_reduction(reduction)
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_arguments(context, log_weight, weight, target, bias, extra, chunk_bytes)
    dtype = at_least_float32(context.dtype)
    inputs = Inputs(
        context.reshape(-1, *context.shape[-2:]),  # (N, K, E)
        log_weight.to(dtype).reshape(-1, log_weight.shape[-1]),  # (N, K)
        weight,
        bias,
        None if extra is None else _joint(*extra).to(dtype),  # (N, J)
        # Small integers would wrap around in the comparisons with V and ignore_index.
        target.reshape(-1).long(),  # (N,)
        logit_map,
    )
    kept = (inputs.target != ignore_index).nonzero().squeeze(1)
    all_kept = len(kept) == len(inputs.target)
    if not all_kept:
        inputs = _selected(inputs, kept)
    check_targets(inputs.target, len(weight))
    with without_autocast(context.device):
        token_loss, loss = BACKENDS[_choose(backend, reduction)](inputs, reduction, chunk_bytes)
    if not all_kept:
        token_loss = token_loss.new_zeros(target.numel()).index_copy(0, kept, token_loss)
    token_loss = token_loss.reshape(target.shape)
    return MixtureLoss(token_loss, token_loss if reduction == "none" else loss)


def mixture_cross_entropy(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    extra: tuple[Tensor, Tensor] | None = None,
    logit_map: LogitMap | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    backend: str = "auto",
    chunk_bytes: int | None = None,
) -> Tensor:
    """-log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target], reduced.

    Exact: no epsilon, and never a table of K × V probabilities for all tokens. The loss has at
    least float32's precision. A target that no component can predict (a bias of -inf) has loss
    +inf and no gradient: the gradients are those of the batch without it.

    Args:
        context: (..., K, E), the vectors that meet the output embedding.
        log_weight: (..., K), log-probabilities of the components.
        weight: (V, E), the output embedding.
        target: (...), integers below V, or `ignore_index`.
        bias: (V,).
        extra: further terms of the mixture, such as a pointer or an n-gram: their log-weights and
            their log-probabilities of the target, each (..., J). All weights sum to one.
        logit_map: applied to each logit before the softmax, such as `Softcap(30.0)`.
        reduction: "mean" over the targets that are not ignored, "sum", or "none".
        backend: "fused" computes gradients in the forward pass, for "mean" and "sum"; "chunked"
            recomputes in the backward pass, for any upstream gradient and `torch.func.grad`;
            "reference" is the definition; "auto" takes the first of these that can do the work.
        chunk_bytes: memory for the logits of one chunk of tokens.
    """
    return mixture_loss(
        context,
        log_weight,
        weight,
        target,
        bias=bias,
        extra=extra,
        logit_map=logit_map,
        reduction=reduction,
        ignore_index=ignore_index,
        backend=backend,
        chunk_bytes=chunk_bytes,
    ).loss


def _joint(log_weight: Tensor, log_prob: Tensor) -> Tensor:
    """The further terms' log-weight plus log-probability, (N, J)."""
    return (log_weight + log_prob).reshape(-1, log_prob.shape[-1])


def _selected(inputs: Inputs, kept: Tensor) -> Inputs:
    """The inputs of these tokens."""
    context, log_weight, weight, bias, extra, target, logit_map = inputs
    extra = None if extra is None else extra[kept]
    return Inputs(context[kept], log_weight[kept], weight, bias, extra, target[kept], logit_map)


def _choose(backend: str, reduction: str) -> str:
    if backend == "auto":
        # torch.func cannot see through gradients that were made in the forward pass.
        in_torch_func = torch._C._are_functorch_transforms_active()
        return "chunked" if reduction == "none" or in_torch_func else "fused"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be auto or one of {list(BACKENDS)}, got {backend!r}")
    if backend == "fused" and reduction == "none":
        raise ValueError(
            'backend must be "chunked" or "reference" for reduction="none", got "fused"'
        )
    return backend
