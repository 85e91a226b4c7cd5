"""Learning curves: a loss between two validations, and what time is worth."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from highrank.studies.compare.record import Point

# Of the last validations, for the slope beyond them.
NUM_LAST = 4


def loss_at(points: Sequence[Point], tokens: float) -> float:
    """The best loss on valid after so many tokens.

    Between validations its logarithm is linear in the logarithm of the tokens; beyond the last one
    the slope of the last four continues.
    """
    if not points:
        raise ValueError("a learning curve must have at least one validation, got none")
    x = [math.log(point.tokens) for point in points]
    y = list(accumulate((math.log(point.valid_loss) for point in points), min))
    at = math.log(tokens)
    if at <= x[-1] or len(x) == 1:
        return math.exp(float(np.interp(at, x, y)))
    slope = min(0.0, float(np.polyfit(x[-NUM_LAST:], y[-NUM_LAST:], 1)[0]))
    return math.exp(y[-1] + slope * (at - x[-1]))


def mean_loss_at(curves: Sequence[Sequence[Point]], tokens: float) -> float:
    """The mean over seeds."""
    return sum(loss_at(points, tokens) for points in curves) / len(curves)


def break_even(curves: Sequence[Sequence[Point]], tokens: float, ratio: float) -> float:
    """Nats that a head must win at equal tokens to pay for its time.

    In the time in which a head that costs `ratio` times as much reads so many tokens, the control
    reads `ratio` times as many, and is this much better for it.

    Args:
        curves: of the control, one per seed.
    """
    return mean_loss_at(curves, tokens) - mean_loss_at(curves, ratio * tokens)
