"""Singular values, and the measures of rank that need no threshold of round-off."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values of a T×V matrix of log-probabilities, and how far they can be trusted."""

    values: Tensor
    """float64, descending: at most min(T, V); those that are left out are zero by construction."""
    shape: tuple[int, int]
    """T contexts, V words."""
    precision: torch.dtype
    """In which the matrix was made."""
    method: str
    """"stable", "fast" or "linear"."""
    floor: float
    """What the method itself cannot tell from zero: values at or below are unknown."""


def effective_rank(values: Tensor, epsilon: float) -> int:
    """The smallest k with Σ_{i≤k} σ² ≥ (1-ε) Σ σ², as Parthiban et al. (2021) count."""
    if not 0 <= epsilon < 1:
        raise ValueError(f"epsilon must be at least 0 and below 1, got {epsilon}")
    # From the smallest on, so that a tail of small values is not lost against the large ones.
    left = values.double().square().flip(0).cumsum(0)  # (min(T, V),)
    return len(left) - int((left <= epsilon * left[-1]).sum())


def stable_rank(values: Tensor) -> float:
    """Σ σ² / σ_max²: barely moved by small singular values."""
    return float(values.square().sum() / values[0].square()) if values[0] > 0 else 0.0


def entropy_rank(values: Tensor) -> float:
    """exp of the entropy of σ / Σ σ: the effective rank of Roy and Vetterli (2007)."""
    if not values[0] > 0:
        return 0.0
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())
