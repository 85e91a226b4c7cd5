"""Differences between cells that were trained with the same seeds: intervals, verdicts, power.

Losses (C, S) of C cells and S seeds are a randomised block design: a seed decides the order of the
windows for all cells. The error is what is left after cells and seeds, with (C - 1)(S - 1) degrees
of freedom: with two cells this is the paired t test. Several cells against one control are
corrected by the distribution of the largest |t| (Dunnett, 1955), drawn by simulation with a fixed
seed: exact for balanced designs, and stronger than Holm's, which ignores that all share a control.
Where the cells' errors clearly differ in size, each pair has its own paired t, with Holm's
correction for verdicts and Bonferroni's for intervals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[int, int]

LEVEL, POWER = 0.05, 0.8
# Errors are pooled unless cells with equal ones would look so different less often than this.
POOLING_LEVEL = 0.01
NUM_DRAWS = 100_000


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A cell's mean loss minus another one's."""

    difference: float
    low: float
    """With `high`: an interval that covers all differences of the family in 95 % of comparisons."""
    high: float
    p: float
    """Corrected for the number of comparisons."""

    @property
    def verdict(self) -> str:
        """What may be said of the cell."""
        if self.p > LEVEL:
            return "no difference seen"
        return "better" if self.difference < 0 else "worse"


@dataclass(frozen=True, kw_only=True)
class Analysis:
    contrasts: tuple[Contrast, ...]
    is_pooled: bool
    degrees: int
    """Of freedom, of the error."""
    error: float
    """Standard deviation of one run's loss around its cell and seed, in nats."""
    detectable: float
    """The difference that would be found in 80 % of comparisons, in nats."""


def analyse(losses: Floats, pairs: Sequence[Pair], family: Sequence[Pair] = ()) -> Analysis | None:
    """Differences losses[a] - losses[b] of pairs (a, b); None with one seed, which decides nothing.

    Args:
        losses: (C, S), one row per cell, finite.
        family: the pairs that were looked at, if they are more than are asked for.
    """
    if min(losses.shape) < 2 or not pairs:
        return None
    family = tuple(family) or tuple(pairs)
    return (_pooled if is_homogeneous(losses) else _separate)(losses, pairs, family)


def _pooled(losses: Floats, pairs: Sequence[Pair], family: tuple[Pair, ...]) -> Analysis:
    """One error for all cells."""
    num_cells, num_seeds = losses.shape
    degrees = (num_cells - 1) * (num_seeds - 1)
    error = math.sqrt(float((residuals(losses) ** 2).sum()) / degrees)
    width, maxima = error * math.sqrt(2 / num_seeds), NullMaxima(family, num_cells, degrees)
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


def _separate(losses: Floats, pairs: Sequence[Pair], family: tuple[Pair, ...]) -> Analysis:
    """Each pair with the error of its own differences."""
    num_cells, num_seeds = losses.shape
    degrees, size = num_seeds - 1, len(family)
    differences = np.array([losses[a] - losses[b] for a, b in pairs])  # (pairs, S)
    means, widths = differences.mean(1), differences.std(1, ddof=1) / math.sqrt(num_seeds)
    factor = t_quantile(1 - LEVEL / 2 / size, degrees)
    alone = [two_sided(_ratio(*at), degrees) for at in zip(means, widths, strict=True)]
    adjusted = zip(means, widths, holm(alone, size), strict=True)
    total = float((residuals(losses) ** 2).sum()) / (num_cells - 1) / degrees
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
    """What cells and seeds do not explain, (C, S)."""
    cells, seeds = losses.mean(1, keepdims=True), losses.mean(0, keepdims=True)
    found: Floats = losses - cells - seeds + losses.mean()
    return found


def is_homogeneous(losses: Floats) -> bool:
    """Whether one error may stand for all cells: Cochran's largest variance over their sum."""
    num_cells, num_seeds = losses.shape
    squares = (residuals(losses) ** 2).sum(1)  # (C,)
    if num_cells == 2 or not squares.sum() > 0:
        return True
    return bool(squares.max() / squares.sum() <= _largest_fraction(num_cells, num_seeds))


@cache
def _largest_fraction(num_cells: int, num_seeds: int) -> float:
    """What the largest fraction of the error stays below if all cells have the same error."""
    draws = np.random.default_rng(0).standard_normal((4_000, num_cells, num_seeds))
    rest = draws - draws.mean(2, keepdims=True) - draws.mean(1, keepdims=True)
    squares = ((rest + draws.mean((1, 2), keepdims=True)) ** 2).sum(2)  # (draws, C)
    fraction = squares.max(1) / squares.sum(1)
    return float(np.quantile(fraction, 1 - POOLING_LEVEL))


class NullMaxima:
    """The largest |t| of a family of differences if all cells are equal."""

    def __init__(self, pairs: tuple[Pair, ...], num_cells: int, degrees: int) -> None:
        self.degrees = degrees
        self.values = None if len(pairs) == 1 else _null_maxima(pairs, num_cells, degrees)

    def quantile(self, probability: float) -> float:
        if self.values is None:
            return t_quantile((1 + probability) / 2, self.degrees)
        return float(self.values[math.ceil(probability * len(self.values)) - 1])

    def exceeding(self, statistic: float) -> float:
        """The probability that it is at least this large."""
        if self.values is None:
            return two_sided(statistic, self.degrees)
        num_below = int(self.values.searchsorted(statistic))
        return (len(self.values) - num_below + 1) / (len(self.values) + 1)


@cache
def _null_maxima(pairs: tuple[Pair, ...], num_cells: int, degrees: int) -> Floats:
    random = np.random.default_rng(0)
    means = random.standard_normal((NUM_DRAWS, num_cells))
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
    if math.isinf(statistic):
        return 0.0
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + statistic**2))


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t stays below with this probability, by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, got {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while 1 - two_sided(high, degrees) / 2 < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        is_below = 1 - two_sided(middle, degrees) / 2 < probability
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        # The fraction converges quickly on the other side.
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), from the innermost term that counts outwards."""
    value = 1.0
    for n in range(400, 0, -1):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + term / value
    return value
