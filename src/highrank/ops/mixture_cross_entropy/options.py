"""The options of the losses: what each means, and which values it may have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from highrank.ops.logit_map import LogitMap
from highrank.ops.sharding import Rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# What one pass can yield besides the loss, without gradients: log-sum-exps of the components
# (..., K), the likeliest token (...), the entropy in nats (...); and, with its gradient, the
# logarithm of the components' weights (..., K).
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
    weights = {"token_weight": options.get("token_weight")}
    weights["class_weight"] = options.get("class_weight")
    for name, weight in weights.items():
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
            raise ValueError(f"also must be without {name} where there are extra terms")
