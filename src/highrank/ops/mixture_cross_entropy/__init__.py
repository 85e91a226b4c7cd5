"""Cross-entropy of a mixture of softmaxes: one public function, several backends.

    -log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target]

The derivation and the bytes each backend needs are in this folder's README.md.
N tokens, K components, E embedding size, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.mixture_cross_entropy import chunked, fused, reference
from highrank.ops.mixture_cross_entropy.arguments import check_arguments, check_targets
from highrank.ops.mixture_cross_entropy.reference import REDUCTIONS
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
    softcap: float | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    backend: str = "auto",
    chunk_bytes: int | None = None,
) -> MixtureLoss:
    """As `mixture_cross_entropy`, and the loss of each token from the same pass.

    Gradients flow through `loss`; `token_loss` is detached unless `reduction` is "none".
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_arguments(context, log_weight, weight, target, bias, softcap, chunk_bytes)
    log_weight = log_weight.to(at_least_float32(context.dtype))
    shape = target.shape
    context = context.reshape(-1, *context.shape[-2:])  # (N, K, E)
    log_weight = log_weight.reshape(-1, log_weight.shape[-1])  # (N, K)
    # Small integers would wrap around in the comparisons with V and ignore_index.
    target = target.reshape(-1).long()  # (N,)
    kept = (target != ignore_index).nonzero().squeeze(1)
    all_kept = len(kept) == len(target)
    if not all_kept:
        context, log_weight, target = context[kept], log_weight[kept], target[kept]
    check_targets(target, len(weight))
    with without_autocast(context.device):
        token_loss, loss = BACKENDS[_choose(backend, reduction)](
            context, log_weight, weight, bias, target, softcap, reduction, chunk_bytes
        )
    if not all_kept:
        token_loss = token_loss.new_zeros(shape.numel()).index_copy(0, kept, token_loss)
    token_loss = token_loss.reshape(shape)
    return MixtureLoss(token_loss, token_loss if reduction == "none" else loss)


def mixture_cross_entropy(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    backend: str = "auto",
    chunk_bytes: int | None = None,
) -> Tensor:
    """-log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target], reduced.

    Exact: no epsilon, and never a table of K × V probabilities for all tokens. The loss has at
    least float32's precision. A target that no component can say (a bias of -inf) has loss +inf
    and no gradient: the gradients are those of the batch without it.

    Args:
        context: (..., K, E), the vectors that meet the output embedding.
        log_weight: (..., K), normalised log-probabilities of the components.
        weight: (V, E), the output embedding.
        target: (...), integers below V, or `ignore_index`.
        bias: (V,).
        softcap: replaces each logit z by softcap · tanh(z / softcap).
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
        softcap=softcap,
        reduction=reduction,
        ignore_index=ignore_index,
        backend=backend,
        chunk_bytes=chunk_bytes,
    ).loss


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
