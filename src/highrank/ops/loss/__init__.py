"""Arguments and options of the losses: what each means, and which values it may have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from highrank.ops.logit_map import LogitMap
from highrank.ops.mixed_linear import is_wider
from highrank.ops.sharding import Rows
from highrank.ops.tracing import in_vmap, is_fake

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

# Token ids (...), or for distillation the ids and probabilities of the likeliest, each (..., M).
Target = Tensor | tuple[Tensor, Tensor]

# Outputs of a pass besides the loss: log-sum-exps of the components (..., K) and the likeliest
# token (...), without gradients; the entropy in nats (...) and the logarithm of the components'
# weights (..., K), with theirs.
ByProduct = Literal["lse", "prediction", "entropy", "log_weight"]
BY_PRODUCTS: tuple[str, ...] = get_args(ByProduct)


class LossOptions(TypedDict, total=False):
    """Keyword arguments of `mixture_cross_entropy` and of the heads' `forward`."""

    logit_map: LogitMap | None
    """Applied to each logit before the softmax, such as `Softcap(30.0)`."""
    logit_scale: float | Tensor | None
    """Multiplies the logits, bias included, before the map."""
    class_weight: Tensor | None
    """(V,), weight of each token of the vocabulary as a target; "mean" divides by their sum."""
    token_weight: Tensor | None
    """(...), weight of each position; "mean" divides by their sum. No gradient flows into it."""
    label_smoothing: float
    """ε: the target is (1 - ε) · one-hot + ε / V, scored by the mixture's log-probabilities."""
    z_loss: float
    """ζ: adds ζ Σ_k exp(log_weight[k]) lse_k², with the log-sum-exp of each component's logits."""
    shift: int
    """Position t predicts the target at t + shift along the last dimension of `target`."""
    group: "ProcessGroup | None"
    """The processes that have a part of the vocabulary each; all of them if None."""
    shard: Rows | None
    """start, stop: `weight` and `bias` are these rows of the vocabulary; the tokens are the same in
    every process. Not for a DTensor, which knows its rows."""
    backend: str
    """"auto", "fused", "chunked" or "reference"."""
    chunk_bytes: int | None
    """Memory for the logits of one chunk of tokens; None chooses from the shapes."""


def check_options(options: LossOptions) -> None:
    if unknown := set(options) - set(LossOptions.__annotations__):
        raise TypeError(
            f"options must be of {', '.join(LossOptions.__annotations__)}, got {sorted(unknown)}"
        )
    if not 0 <= options.get("label_smoothing", 0.0) < 1:
        found = options["label_smoothing"]
        raise ValueError(f"label_smoothing must be at least 0 and below 1, got {found}")
    if not 0 <= options.get("z_loss", 0.0) < float("inf"):
        raise ValueError(f"z_loss must be at least 0 and finite, got {options['z_loss']}")
    if options.get("shift", 0) < 0:
        raise ValueError(f"shift must be at least 0, got {options['shift']}")
    weights = options.get("token_weight"), options.get("class_weight")
    for name, weight in zip(("token_weight", "class_weight"), weights, strict=True):
        if weight is not None and weight.requires_grad:
            raise ValueError(f"{name} must not require a gradient, got one that does")
    _check_map(options)
    rows = options.get("shard")
    if rows is not None and not 0 <= rows[0] <= rows[1]:
        raise ValueError(f"shard must be 0 ≤ start ≤ stop, got {rows}")
    chunk_bytes = options.get("chunk_bytes")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")


def _check_map(options: LossOptions) -> None:
    learned = options.get("logit_map")
    if not isinstance(learned, nn.Module) or options.get("backend") == "reference":
        return
    if torch.is_grad_enabled() and any(p.requires_grad for p in learned.parameters()):
        raise ValueError(
            "logit_map must have no parameters that require a gradient (backend='reference' trains "
            f"them), got {type(learned).__name__}"
        )


def check_by_products(also: Sequence[ByProduct], has_extra: bool) -> None:
    for name in also:
        if name not in BY_PRODUCTS:
            raise ValueError(f"also must be of {', '.join(BY_PRODUCTS)}, got {name!r}")
        if has_extra and name in ("prediction", "entropy"):
            raise ValueError(f"extra terms must come without also {name!r}, got both")


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
    """Raise unless the weight has the dtype of the contexts, or a less precise one."""
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None or tensor.dtype == context.dtype or is_wider(context, tensor):
            continue
        raise ValueError(
            f"{name} must be {context.dtype} as context is, or less precise, got {tensor.dtype}"
        )


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


def check_weights(log_weight: Tensor, of_extra: Tensor) -> None:
    """Raise unless the weights of all terms sum to one, but for rounding; not while compiling."""
    if torch.compiler.is_compiling() or is_fake(log_weight) or in_vmap() or not log_weight.numel():
        return
    total = (log_weight.exp().sum(-1) + of_extra.exp().sum(-1)).detach()
    worst = total.flatten()[(total.flatten() - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-2:
        raise ValueError(f"weights must sum to one, those of extra included, got {worst:.4g}")


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
