"""Singular values, and the measures of rank that need no threshold of round-off.

Numerical rank of a matrix of log-probabilities.

A rank read off floating-point numbers is a count of singular values above their round-off. The
epsilon must be that of the precision in which the numbers were *made*: float32 numbers judged with
float64's epsilon look like a matrix of full rank. So there are two ranks, and they have names:

- *comparable*: above the round-off of float32, as the literature counts;
- *certified*: above the round-off of float64, for a matrix that was made in float64.
"""

import math
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


EPSILONS = (1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True, kw_only=True)
class RankBound:
    """The highest rank that a head allows, whatever its parameters."""

    value: int | None
    """None where no bound is known."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """All that is said of a matrix's rank; a rank that cannot be known is None."""

    num_contexts: int
    vocab_size: int
    precision: str
    """In which the matrix was made, as "float64"."""
    method: str
    comparable: int | None
    """Singular values above float32's round-off."""
    certified: int | None
    """Singular values above float64's round-off."""
    unknown: str
    """Why a rank is missing; empty if none is."""
    largest: float
    """σ_max."""
    noise_floor: float
    """Singular values at or below it say nothing: round-off of the matrix, or of the method."""
    effective: dict[float, int]
    """By ε: how many singular values carry all but ε of the sum of squares."""
    stable: float
    entropy: float
    bound: RankBound


def press_threshold(largest: float, shape: tuple[int, int], eps: float) -> float:
    """½ √(m + n + 1) · σ_max · ε: round-off of singular values, Press et al. (2007)."""
    return 0.5 * math.sqrt(sum(shape) + 1) * largest * eps


def numerical_rank(singular_values: Tensor, shape: tuple[int, int], eps: float) -> int:
    """How many singular values of a matrix of this shape stand above their round-off.

    Args:
        singular_values: in descending order.
        eps: machine epsilon of the precision in which the matrix was computed.
    """
    threshold = press_threshold(singular_values[0].item(), shape, eps)
    return int((singular_values > threshold).sum())


def log_prob_rank(log_prob: Tensor) -> tuple[int, Tensor]:
    """Numerical rank and singular values (descending) of log-probabilities computed in float64."""
    if log_prob.dtype != torch.float64:
        raise ValueError(f"log_prob must be float64, got {log_prob.dtype}")
    if log_prob.dim() != 2 or log_prob.numel() == 0 or not log_prob.isfinite().all():
        raise ValueError(f"log_prob must be a finite matrix, got {tuple(log_prob.shape)}")
    singular_values = torch.linalg.svdvals(log_prob)
    rows, columns = log_prob.shape
    eps = torch.finfo(torch.float64).eps
    return numerical_rank(singular_values, (rows, columns), eps), singular_values


def noise_floor(spectrum: Spectrum) -> float:
    """The larger of two round-offs: of the matrix in its precision, and of the method."""
    eps = torch.finfo(spectrum.precision).eps
    return max(press_threshold(spectrum.values[0].item(), spectrum.shape, eps), spectrum.floor)


def comparable_rank(spectrum: Spectrum) -> int | None:
    """Singular values above float32's Press threshold, as the literature counts.

    The round-off of float32 numbers is far below that threshold, so that a matrix made in float64
    has the same count but for values that lie on it. None for coarser numbers.
    """
    return _known_rank(spectrum, torch.float32)


def certified_rank(spectrum: Spectrum) -> int | None:
    """Singular values above float64's Press threshold; None for a matrix made in less."""
    return _known_rank(spectrum, torch.float64)


def rank_bound(
    embedding_size: int,
    *,
    has_bias: bool,
    num_softmaxes: int = 1,
    softcap: float | None = None,
) -> RankBound:
    """What follows from the form of a head alone.

    Args:
        embedding_size: of the context that meets the output embedding.
        num_softmaxes: that are mixed after they are normalised.
        softcap: c, where logits are c · tanh(logits / c).
    """
    if softcap is not None:
        reason = (
            "logits are soft-capped: c·tanh(logits/c) bends every entry of the matrix, so that its "
            "rank is not bound to the size of what was multiplied"
        )
        return RankBound(value=None, reason=reason)
    if num_softmaxes > 1:
        reason = (
            f"{num_softmaxes} softmaxes are summed inside the logarithm: log p is not linear in "
            "anything of the context's size"
        )
        return RankBound(value=None, reason=reason)
    parts = f"{embedding_size} from the context, 1 from the normaliser"
    if not has_bias:
        return RankBound(value=embedding_size + 1, reason=parts)
    return RankBound(value=embedding_size + 2, reason=f"{parts}, 1 from the bias")


def rank_report(spectrum: Spectrum, bound: RankBound) -> RankReport:
    """Every measure of rank of one matrix.

    The threshold-free ones are of the values as they are: of numbers made in bfloat16 they measure
    the noise, too.
    """
    values = spectrum.values
    return RankReport(
        num_contexts=spectrum.shape[0],
        vocab_size=spectrum.shape[1],
        precision=str(spectrum.precision).removeprefix("torch."),
        method=spectrum.method,
        comparable=comparable_rank(spectrum),
        certified=certified_rank(spectrum),
        unknown=_unknown(spectrum),
        largest=values[0].item(),
        noise_floor=noise_floor(spectrum),
        effective={epsilon: effective_rank(values, epsilon) for epsilon in EPSILONS},
        stable=stable_rank(values),
        entropy=entropy_rank(values),
        bound=bound,
    )


def _known_rank(spectrum: Spectrum, judge: torch.dtype) -> int | None:
    """The rank at this precision's threshold, unless the numbers are coarser than that."""
    eps = torch.finfo(judge).eps
    if torch.finfo(spectrum.precision).eps > eps:
        return None
    threshold = press_threshold(spectrum.values[0].item(), spectrum.shape, eps)
    if threshold < spectrum.floor and (spectrum.values <= spectrum.floor).any():
        return None
    return int((spectrum.values > threshold).sum())


def _unknown(spectrum: Spectrum) -> str:
    name = str(spectrum.precision).removeprefix("torch.")
    if torch.finfo(spectrum.precision).eps > torch.finfo(torch.float32).eps:
        return f"the log-probabilities were made in {name}: the noise floor hides the rank"
    reasons = []
    if comparable_rank(spectrum) is None or (
        certified_rank(spectrum) is None and spectrum.precision == torch.float64
    ):
        reasons.append(f"the {spectrum.method} method hides what is below its own round-off")
    if spectrum.precision != torch.float64:
        reasons.append("a certified rank needs the head recomputed in float64")
    return "; ".join(reasons)
