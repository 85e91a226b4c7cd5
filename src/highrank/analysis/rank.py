"""Measures of rank of a matrix of log-probabilities, read off its singular values.

A numerical rank counts the singular values above their round-off. The epsilon must be that of the
precision in which the matrix was *computed*: float32 numbers judged with float64's epsilon look
like a matrix of full rank. So there are two numerical ranks, one with the tolerance of float32, as
the literature counts, and one with that of float64. T contexts, V tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values of a T×V matrix of log-probabilities, and how far they can be trusted."""

    values: Tensor
    """float64, descending: at most min(T, V); those that are left out are zero by construction."""
    shape: tuple[int, int]
    """(T, V)."""
    precision: torch.dtype
    """In which the matrix was computed."""
    method: str
    """"stable", "fast" or "linear"."""
    floor: float
    """Round-off of the method: values at or below it are unknown."""


@dataclass(frozen=True, kw_only=True)
class RankBound:
    """The highest rank that a head allows, whatever its parameters."""

    value: int | None
    """None where no bound is known."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of rank, as `MEASURES` lists them for tables, pages and JSON."""

    key: str
    """In JSON."""
    label: str
    definition: str
    """A clause; measures that differ in ε alone share it."""
    compute: Callable[[Spectrum], float | None]
    """None where it cannot be known."""
    decimals: int = 0
    """Digits that are shown after the point."""


def press_threshold(largest: float, shape: tuple[int, int], eps: float) -> float:
    """½ √(m + n + 1) · σ_max · ε: round-off of singular values, Press et al. (2007)."""
    return 0.5 * math.sqrt(sum(shape) + 1) * largest * eps


def numerical_rank(values: Tensor, shape: tuple[int, int], eps: float) -> int:
    """How many singular values of a matrix of this shape are above their round-off.

    Args:
        values: in descending order.
        eps: machine epsilon of the precision in which the matrix was computed.
    """
    return int((values > press_threshold(values[0].item(), shape, eps)).sum())


def numerical_rank_float32(spectrum: Spectrum) -> int | None:
    """Singular values above float32's Press threshold, as the literature counts.

    The round-off of float32 numbers is far below that threshold, so that a matrix computed in
    float64 has the same count but for values that lie on it. None for coarser numbers.
    """
    return _known_rank(spectrum, torch.float32)


def numerical_rank_float64(spectrum: Spectrum) -> int | None:
    """Singular values above float64's Press threshold; None for a matrix computed in less."""
    return _known_rank(spectrum, torch.float64)


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
    return float(torch.special.entr(values / values.sum()).sum().exp())


def _effective(spectrum: Spectrum, epsilon: float) -> int:
    return effective_rank(spectrum.values, epsilon)


# Effective, stable and entropy rank are of the values as they are: of numbers computed in bfloat16
# they measure the noise, too.
MEASURES = (
    Measure(
        key="numerical_rank_float32",
        label="numerical rank, float32",
        definition="singular values above float32's round-off, as the literature counts",
        compute=numerical_rank_float32,
    ),
    Measure(
        key="numerical_rank_float64",
        label="numerical rank, float64",
        definition="singular values above float64's round-off",
        compute=numerical_rank_float64,
    ),
    *(
        Measure(
            key=f"effective_rank_{epsilon:.0e}".replace("e-0", "e-"),
            label=f"effective rank, ε\u00a0=\u00a0{power}",
            definition="singular values that carry all but ε of the sum of squares",
            compute=partial(_effective, epsilon=epsilon),
        )
        for power, epsilon in {"10⁻²": 1e-2, "10⁻³": 1e-3, "10⁻⁴": 1e-4, "10⁻⁵": 1e-5}.items()
    ),
    Measure(
        key="stable_rank",
        label="stable rank",
        definition="Σσ² ÷ the largest σ²",
        compute=lambda spectrum: stable_rank(spectrum.values),
        decimals=2,
    ),
    Measure(
        key="entropy_rank",
        label="entropy rank",
        definition="exp of the entropy of σ ÷ Σσ",
        compute=lambda spectrum: entropy_rank(spectrum.values),
        decimals=1,
    ),
)


def measure_ranks(spectrum: Spectrum) -> dict[str, float | None]:
    """Every measure of `MEASURES`, by its key."""
    return {measure.key: measure.compute(spectrum) for measure in MEASURES}


def noise_floor(spectrum: Spectrum) -> float:
    """The larger of two round-offs: of the matrix in its precision, and of the method."""
    eps = torch.finfo(spectrum.precision).eps
    return max(press_threshold(spectrum.values[0].item(), spectrum.shape, eps), spectrum.floor)


def unknown_reason(spectrum: Spectrum) -> str:
    """Why a numerical rank is unknown; empty if both are known."""
    if torch.finfo(spectrum.precision).eps > torch.finfo(torch.float32).eps:
        name = str(spectrum.precision).removeprefix("torch.")
        return f"the log-probabilities were computed in {name}: the noise floor hides the rank"
    is_double = spectrum.precision == torch.float64
    rank = numerical_rank_float64 if is_double else numerical_rank_float32
    reasons = []
    if rank(spectrum) is None:
        reasons.append(f"the {spectrum.method} method hides what is below its own round-off")
    if not is_double:
        reasons.append("the numerical rank of float64 needs the head recomputed in float64")
    return "; ".join(reasons)


def log_prob_rank(log_prob: Tensor) -> tuple[int, Tensor]:
    """Numerical rank and singular values (descending) of log-probabilities computed in float64."""
    if log_prob.dtype != torch.float64:
        raise ValueError(f"log_prob must be float64, got {log_prob.dtype}")
    if log_prob.dim() != 2 or log_prob.numel() == 0 or not log_prob.isfinite().all():
        raise ValueError(f"log_prob must be a finite matrix, got {tuple(log_prob.shape)}")
    values, (rows, columns) = torch.linalg.svdvals(log_prob), log_prob.shape
    return numerical_rank(values, (rows, columns), torch.finfo(torch.float64).eps), values


def rank_bound(
    embedding_size: int,
    *,
    has_bias: bool,
    num_softmaxes: int = 1,
    softcap: float | None = None,
    has_map: bool = False,
) -> RankBound:
    """The bound that follows from the form of a head alone.

    Args:
        embedding_size: of the context that is multiplied with the output embedding.
        num_softmaxes: that are mixed after they are normalised.
        softcap: c, where logits are c · tanh(logits / c).
        has_map: whether another nonlinear map is applied to each logit.
    """
    value, unbound = None, "rank is not bound to the size of what was multiplied"
    if has_map:
        reason = (
            "each logit is mapped before the softmax, which bends every entry of the matrix: its "
            + unbound
        )
    elif softcap is not None:
        reason = (
            "logits are soft-capped: c·tanh(logits/c) bends every entry of the matrix, so that its "
            + unbound
        )
    elif num_softmaxes > 1:
        reason = (
            f"{num_softmaxes} softmaxes are summed inside the logarithm: log p is not linear in "
            "anything of the context's size"
        )
    else:
        value = embedding_size + (2 if has_bias else 1)
        reason = f"{embedding_size} from the context, 1 from the normaliser"
        reason += ", 1 from the bias" if has_bias else ""
    return RankBound(value=value, reason=reason)


def _known_rank(spectrum: Spectrum, judge: torch.dtype) -> int | None:
    """The rank at this precision's threshold, unless the numbers are coarser than that."""
    eps = torch.finfo(judge).eps
    if torch.finfo(spectrum.precision).eps > eps:
        return None
    threshold = press_threshold(spectrum.values[0].item(), spectrum.shape, eps)
    if threshold < spectrum.floor and (spectrum.values <= spectrum.floor).any():
        return None
    return numerical_rank(spectrum.values, spectrum.shape, eps)
