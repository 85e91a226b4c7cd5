"""Targets of a loss, their weights, and the reduction of the losses to one number.

    loss = w · (Σ_m a[m] · nll(target[m]) + Σ_v s[v] · nll(v)),   nll(v) = -log p(v)

An ordinary loss has one target a token, a = w = 1 and s = 0. N tokens, M targets of a token,
V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.loss import LossOptions, Target
from highrank.ops.tracing import is_static


class Targets(NamedTuple):
    """Flat: one row a token. None stands for ones; for no smoothing at all in `smoothing`."""

    target: Tensor  # (N, M)
    amount: Tensor | None  # (N, M)
    smoothing: Tensor | None  # (V,)
    token_weight: Tensor | None  # (N,)
    mass: Tensor | None  # (N,)

    @property
    def has_ids_only(self) -> bool:
        """Whether each token has one target, and no smoothing."""
        return self.target.shape[1] == 1 and self.smoothing is None

    @property
    def scale(self) -> Tensor | None:
        """(N,), the weight of each token that has one target."""
        if self.amount is None:
            return self.token_weight
        amount = self.amount.squeeze(1)
        return amount if self.token_weight is None else amount * self.token_weight


def make_targets(
    target: Target, options: LossOptions, vocab_size: int, dtype: torch.dtype
) -> Targets:
    """The targets and weights that the options ask for.

    Args:
        target: already shifted.
        dtype: that of the losses.
    """
    ids, amount = target if isinstance(target, tuple) else (target[..., None], None)
    num_targets = ids.shape[-1]
    # Small integers would wrap around in the comparisons with V and ignore_index.
    flat = ids.reshape(-1, num_targets).long()  # (N, M)
    if amount is not None:
        amount = amount.detach().to(dtype).reshape(-1, num_targets)
    targets = Targets(flat, amount, None, None, None)
    if options.get("class_weight") is not None:
        targets = _with_class_weight(targets, options, vocab_size, dtype)
    if options.get("label_smoothing"):
        targets = _with_smoothing(targets, options, vocab_size, dtype)
    weight = options.get("token_weight")
    if weight is None:
        return targets
    return _with_token_weight(targets, weight, options.get("shift", 0), dtype)


def drop_ignored(
    targets: Targets, ignore_index: int, dtype: torch.dtype
) -> tuple[Targets, Tensor | None]:
    """The targets without the ignored ones, and the positions that are kept; None if all are.

    Where shapes must not depend on numbers nothing is left out: an ignored target weighs nothing.
    """
    is_target = targets.target != ignore_index  # (N, M)
    is_kept = is_target.any(-1)  # (N,)
    if is_target.shape[1] > 1:
        assert targets.amount is not None
        ids = targets.target.masked_fill(~is_target, 0)
        targets = targets._replace(target=ids, amount=targets.amount * is_target)
    if is_static(targets.target):
        return _masked(targets, is_kept.to(dtype)), None
    kept = is_kept.nonzero().squeeze(1)
    if len(kept) == len(is_kept):
        return targets, None
    amount, weight, mass = (index_or_none(x, kept) for x in (targets.amount, *targets[3:]))
    return Targets(targets.target[kept], amount, targets.smoothing, weight, mass), kept


def shift_targets(target: Target, shift: int) -> Target:
    """The targets that are `shift` positions later."""
    if not shift:
        return target
    ids = target[0] if isinstance(target, tuple) else target
    length = ids.shape[-2 if isinstance(target, tuple) else -1] if ids.dim() else 0
    if length <= shift:
        raise ValueError(f"shift must be below the number of positions, {length}, got {shift}")
    if isinstance(target, tuple):
        return target[0][..., shift:, :], target[1][..., shift:, :]
    return target[..., shift:]


def index_or_none(tensor: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """The rows of a tensor that may be missing."""
    return None if tensor is None else tensor[rows]


def weighted_sum(value: Tensor, amount: Tensor | None) -> Tensor:
    """Σ amount · value over the last dimension (N,); 0 times an infinite value is 0."""
    if amount is None:
        return value.sum(-1)
    return (amount * value.masked_fill(amount == 0, 0.0)).sum(-1)


def weight_losses(loss: Tensor, token_weight: Tensor | None) -> Tensor:
    """The losses (N,) times the tokens' weights; a token without weight has loss 0."""
    if token_weight is None:
        return loss
    return token_weight * loss.masked_fill(token_weight == 0, 0.0)


def reduce_losses(token_loss: Tensor, mass: Tensor | None, reduction: str) -> Tensor:
    """The mean or the sum; +inf if a target is impossible, with the gradient of the others."""
    if reduction == "none":
        return token_loss
    impossible = token_loss == torch.inf  # (N,)
    loss = token_loss.masked_fill(impossible, 0.0).sum()
    return reduce_summed_loss(loss, impossible, mass, reduction)


def reduce_summed_loss(
    loss: Tensor, impossible: Tensor, mass: Tensor | None, reduction: str
) -> Tensor:
    """The mean or the sum from the summed loss of the possible targets.

    Without any target the mean is NaN, as in torch, but its gradients are 0.
    """
    if reduction == "mean":
        total = total_mass(impossible, mass)
        loss = (loss / torch.where(total == 0, 1, total)).masked_fill(total == 0, torch.nan)
    return loss + torch.zeros_like(loss).masked_fill(impossible.any(), torch.inf)


def total_mass(impossible: Tensor, mass: Tensor | None) -> Tensor:
    """The divisor of "mean": the targets that carry gradient, or the sum of their masses.

    Not 0 if there are targets but none carries gradient: the loss is +inf then.
    """
    if mass is not None:
        possible = mass.masked_fill(impossible, 0.0).sum()
        # Tokens without mass may have a loss, by smoothing or z-loss: it must not count.
        return torch.where((possible == 0) & impossible.any(), torch.inf, possible)
    count = (~impossible).sum()
    return count.clamp(min=1) if len(impossible) else count


def _with_class_weight(
    targets: Targets, options: LossOptions, vocab_size: int, dtype: torch.dtype
) -> Targets:
    class_weight = options["class_weight"]
    assert class_weight is not None
    if targets.amount is not None:
        raise ValueError("class_weight must come with target ids, got probabilities")
    if class_weight.shape != (vocab_size,):
        raise ValueError(f"class_weight must be ({vocab_size},), got {tuple(class_weight.shape)}")
    amount = class_weight.to(dtype)[targets.target.clamp(0, vocab_size - 1)]  # (N, 1)
    return targets._replace(amount=amount, mass=amount.squeeze(1))


def _with_smoothing(
    targets: Targets, options: LossOptions, vocab_size: int, dtype: torch.dtype
) -> Targets:
    epsilon, class_weight = options["label_smoothing"], options.get("class_weight")
    if targets.amount is not None and class_weight is None:
        raise ValueError("label_smoothing must come with target ids, got probabilities")
    ids = targets.target
    uniform = torch.full((vocab_size,), epsilon / vocab_size, dtype=dtype, device=ids.device)
    amount = targets.amount
    if amount is None:
        amount = torch.ones_like(ids, dtype=dtype)
    return targets._replace(
        amount=(1 - epsilon) * amount,
        smoothing=uniform if class_weight is None else uniform * class_weight.to(dtype),
    )


def _with_token_weight(targets: Targets, weight: Tensor, shift: int, dtype: torch.dtype) -> Targets:
    weight = weight[..., shift:] if shift else weight
    if weight.numel() != targets.target.shape[0]:
        found = tuple(weight.shape)
        raise ValueError(f"token_weight must have the shape of the targets, got {found}")
    flat = weight.reshape(-1).to(dtype)  # (N,)
    mass = flat if targets.mass is None else flat * targets.mass
    return targets._replace(token_weight=flat, mass=mass)


def _masked(targets: Targets, kept: Tensor) -> Targets:
    """The targets with a weight of 0 where they are ignored; `kept` (N,) is 0 or 1."""
    return targets._replace(
        target=targets.target.masked_fill(kept[:, None] == 0, 0),
        token_weight=kept if targets.token_weight is None else kept * targets.token_weight,
        mass=kept if targets.mass is None else kept * targets.mass,
    )
