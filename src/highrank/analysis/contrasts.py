"""Differences between variants trained with the same seeds: intervals, verdicts, power.

Losses (C, S) of C variants and S seeds are a randomised block design: a seed decides the order of
the windows for all variants. The error is what is left after variants and seeds, with
(C - 1)(S - 1) degrees of freedom: with two variants this is the paired t test. Several variants
against one baseline are corrected by the distribution of the largest |t| (Dunnett, 1955), drawn by
simulation with a fixed seed: exact for balanced designs, and stronger than Holm's, which ignores
that all share a baseline. (`scipy.stats.dunnett` has no blocks.) Where the variants' errors clearly
differ in size, each pair has its own paired t, with Holm's correction for verdicts and Bonferroni's
for intervals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.environment import install_hint

Floats = NDArray[np.float64]
Pair = tuple[int, int]

LEVEL, POWER = 0.05, 0.8
# Errors are pooled unless variants with equal ones would differ as much less often than this.
POOLING_LEVEL = 0.01
NUM_DRAWS = 100_000


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference seen"


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Mean loss of a variant minus that of its baseline."""

    difference: float
    low: float
    """With `high`: an interval that covers all differences of the family in 95 % of comparisons."""
    high: float
    p: float
    """Corrected for the number of comparisons."""

    @property
    def verdict(self) -> Verdict:
        if self.p > LEVEL:
            return Verdict.NO_DIFFERENCE
        return Verdict.BETTER if self.difference < 0 else Verdict.WORSE


@dataclass(frozen=True, kw_only=True)
class Analysis:
    contrasts: tuple[Contrast, ...]
    is_pooled: bool
    degrees: int
    """Degrees of freedom of the error."""
    error: float
    """Standard deviation of one run's loss around its variant and seed, in nats."""
    detectable: float
    """Difference that would be found in 80 % of comparisons, in nats."""


def analyse(losses: Floats, pairs: Sequence[Pair], family: Sequence[Pair] = ()) -> Analysis | None:
    """Differences losses[a] - losses[b] of pairs (a, b); None with one seed, which decides nothing.

    Args:
        losses: (C, S), one row per variant, finite.
        family: the pairs that were looked at, if they are more than are asked for.
    """
    if min(losses.shape) < 2 or not pairs:
        return None
    family = tuple(family) or tuple(pairs)
    if is_homogeneous(losses):
        return _analyse_pooled(losses, pairs, family)
    return _analyse_separately(losses, pairs, family)


def _analyse_pooled(losses: Floats, pairs: Sequence[Pair], family: tuple[Pair, ...]) -> Analysis:
    """Contrasts with one error for all variants."""
    num_variants, num_seeds = losses.shape
    degrees = (num_variants - 1) * (num_seeds - 1)
    error = math.sqrt(float((residuals(losses) ** 2).sum()) / degrees)
    width, maxima = error * math.sqrt(2 / num_seeds), NullMaxima(family, num_variants, degrees)
    factor, contrasts = maxima.quantile(1 - LEVEL), []
    for a, b in pairs:
        difference = float(losses[a].mean() - losses[b].mean())
        p = maxima.exceeding(_ratio(difference, width))
        contrasts.append(_contrast(difference, factor * width, p))
    return Analysis(
        contrasts=tuple(contrasts),
        is_pooled=True,
        degrees=degrees,
        error=error,
        detectable=(factor + t_quantile(POWER, degrees)) * width,
    )


def _analyse_separately(
    losses: Floats, pairs: Sequence[Pair], family: tuple[Pair, ...]
) -> Analysis:
    """Contrasts of pairs that each have the error of their own differences."""
    num_variants, num_seeds = losses.shape
    degrees, size = num_seeds - 1, len(family)
    differences = np.array([losses[a] - losses[b] for a, b in pairs])  # (pairs, S)
    means, widths = differences.mean(1), differences.std(1, ddof=1) / math.sqrt(num_seeds)
    factor = t_quantile(1 - LEVEL / 2 / size, degrees)
    alone = [two_sided(_ratio(*at), degrees) for at in zip(means, widths, strict=True)]
    adjusted = zip(means, widths, holm(alone, size), strict=True)
    total = float((residuals(losses) ** 2).sum()) / (num_variants - 1) / degrees
    return Analysis(
        contrasts=tuple(_contrast(float(d), factor * float(w), p) for d, w, p in adjusted),
        is_pooled=False,
        degrees=degrees,
        error=math.sqrt(total),
        detectable=(factor + t_quantile(POWER, degrees)) * float(np.median(widths)),
    )


def _contrast(difference: float, half: float, p: float) -> Contrast:
    return Contrast(difference=difference, low=difference - half, high=difference + half, p=p)


def _ratio(difference: float, width: float) -> float:
    if width > 0:
        return abs(difference) / width
    return math.inf if difference else 0.0


def residuals(losses: Floats) -> Floats:
    """Losses without the means of variants and seeds, (C, S)."""
    variants, seeds = losses.mean(1, keepdims=True), losses.mean(0, keepdims=True)
    found: Floats = losses - variants - seeds + losses.mean()
    return found


def is_homogeneous(losses: Floats) -> bool:
    """Whether all variants may have one error: Cochran's largest variance over their sum."""
    num_variants, num_seeds = losses.shape
    squares = (residuals(losses) ** 2).sum(1)  # (C,)
    if num_variants == 2 or not squares.sum() > 0:
        return True
    return bool(squares.max() / squares.sum() <= _largest_fraction(num_variants, num_seeds))


@cache
def _largest_fraction(num_variants: int, num_seeds: int) -> float:
    """Bound of the largest fraction of the error if all variants have the same error."""
    draws = np.random.default_rng(0).standard_normal((4_000, num_variants, num_seeds))
    rest = draws - draws.mean(2, keepdims=True) - draws.mean(1, keepdims=True)
    squares = ((rest + draws.mean((1, 2), keepdims=True)) ** 2).sum(2)  # (draws, C)
    fraction = squares.max(1) / squares.sum(1)
    return float(np.quantile(fraction, 1 - POOLING_LEVEL))


class NullMaxima:
    """Distribution of the largest |t| of a family of differences if all variants are equal."""

    def __init__(self, pairs: tuple[Pair, ...], num_variants: int, degrees: int) -> None:
        self.degrees = degrees
        self.values = None if len(pairs) == 1 else _null_maxima(pairs, num_variants, degrees)

    def quantile(self, probability: float) -> float:
        if self.values is None:
            return t_quantile((1 + probability) / 2, self.degrees)
        return float(self.values[math.ceil(probability * len(self.values)) - 1])

    def exceeding(self, statistic: float) -> float:
        """Return the probability of a value at least this large."""
        if self.values is None:
            return two_sided(statistic, self.degrees)
        num_below = int(self.values.searchsorted(statistic))
        return (len(self.values) - num_below + 1) / (len(self.values) + 1)


@cache
def _null_maxima(pairs: tuple[Pair, ...], num_variants: int, degrees: int) -> Floats:
    random = np.random.default_rng(0)
    means = random.standard_normal((NUM_DRAWS, num_variants))
    error = np.sqrt(random.chisquare(degrees, NUM_DRAWS) / degrees)
    first, second = np.array(pairs).T
    largest: Floats = np.abs(means[:, first] - means[:, second]).max(1) / math.sqrt(2) / error
    return np.sort(largest)


def holm(p_values: Sequence[float], size: int | None = None) -> list[float]:
    """Adjusted p values: Holm (1979). `size` is that of the family, if it is larger."""
    size = len(p_values) if size is None else size
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (size - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def two_sided(statistic: float, degrees: int) -> float:
    """P(|T| ≥ |statistic|) of Student's t."""
    return float(2 * _student_t().sf(abs(statistic), degrees))


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Value below which Student's t stays with this probability."""
    return float(_student_t().ppf(probability, degrees))


def _student_t() -> Any:
    try:
        from scipy.stats import t  # type: ignore[import-untyped]
    except ImportError:
        message = f"scipy must be installed to compare variants: {install_hint('cli')}"
        raise ValueError(message) from None
    return t
