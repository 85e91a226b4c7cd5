"""Learning curves: between validations, beyond them, and the price of time."""

import math

import pytest

from highrank.studies.compare.curve import break_even, loss_at, mean_loss_at
from highrank.studies.compare.record import Point


def curve(*losses, first=100):
    return [
        Point(tokens=first * 2**n, cpu_seconds=2.0**n, train_loss=loss, valid_loss=loss)
        for n, loss in enumerate(losses)
    ]


POWER_LAW = curve(*(5 * 2 ** (-0.1 * n) for n in range(6)))


@pytest.mark.parametrize("tokens", [100, 150, 400, 3_000, 3_200, 6_400, 25_600])
def test_a_power_law_is_read_exactly_and_continues(tokens):
    assert loss_at(POWER_LAW, tokens) == pytest.approx(5 * (tokens / 100) ** -0.1)


def test_a_curve_that_rises_again_keeps_its_best():
    found = curve(5.0, 4.0, 4.5, 4.6, 4.7)
    assert loss_at(found, 800) == pytest.approx(4.0) == loss_at(found, 10_000)
    assert loss_at(curve(5.0), 700) == pytest.approx(5.0) == loss_at(found, 50)
    with pytest.raises(ValueError, match="at least one validation, got none"):
        loss_at([], 100)


def test_time_is_worth_what_the_control_would_win_with_it():
    curves = [
        POWER_LAW,
        [Point(**(p.__dict__ | {"valid_loss": p.valid_loss + 1})) for p in POWER_LAW],
    ]
    assert mean_loss_at(curves, 400) == pytest.approx(loss_at(POWER_LAW, 400) + 0.5)
    alone = [POWER_LAW]
    assert break_even(alone, 400, 1.0) == 0
    assert break_even(alone, 400, 2.0) == pytest.approx(5 * (4**-0.1 - 8**-0.1))
    # A cheaper head may be worse.
    assert break_even(alone, 400, 0.5) == pytest.approx(-5 * (2**-0.1 - 4**-0.1))
    assert math.isfinite(break_even(alone, 3_200, 4.0))
