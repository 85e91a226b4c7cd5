"""Curves are compared where all models have got to, in tokens and in time."""

import pytest

from highrank.studies.finetune.result import compare_time, compare_tokens

TIMES = {"softmax": 1.0, "residual": 2.0}


def test_equal_tokens(arms):
    found = compare_tokens(arms, 64)
    assert found.at == 6_400
    softmax, mixture = found.rows
    assert softmax.nats.value == pytest.approx(4.05) and softmax.gain is None
    assert mixture.gain.value == pytest.approx((0.1 + 0.12) / 2)
    assert mixture.gain.error == pytest.approx(0.01)


def test_equal_time_is_steps_times_the_time_of_a_step(arms):
    found = compare_time(arms, TIMES)
    assert found.at == 200
    assert [row.step for row in found.rows] == [200, 100]
    assert found.rows[1].gain.value == pytest.approx(((3.5 - 3.9) + (3.6 - 3.98)) / 2)


def test_losses_between_evaluations_are_interpolated(arms):
    assert arms[0].nats_at(150) == pytest.approx(3.75)
    assert arms[0].nats_at(0) == 5.0
    assert arms[0].nats_at(500) == 3.5


def test_one_seed_has_no_error(arms):
    assert compare_time(arms[:2], TIMES).rows[1].gain.error is None
