"""The time of a run: speed, what is kept for the last validation, and when it is over."""

import pytest

from highrank.training.budget import Clock


def test_the_speed_is_of_the_last_windows_without_the_first_of_a_sitting():
    clock = Clock(None, num_valid=100)
    clock.add_window(10, 5.0)
    assert clock.speed is None
    for _ in range(60):
        clock.add_window(10, 1.0)
    clock.add_window(10, 11.0)
    assert clock.speed == pytest.approx(500 / 60) and clock.seconds == 76.0


def test_without_a_budget_time_is_never_over():
    clock = Clock(None, num_valid=100)
    clock.add_window(1, 1e9)
    assert clock.progress(1) == 0 and not clock.is_over(1)


def test_time_is_over_when_only_the_last_validation_fits_in():
    clock = Clock(10.0, num_valid=100)
    clock.add_validation(3.0, num_components=1)
    assert clock.progress(1) == pytest.approx(3 / 7) and not clock.is_over(1)
    clock.add_window(10, 4.0)
    assert clock.progress(1) == 1 and clock.is_over(1)


def test_before_a_validation_a_token_takes_as_long_as_in_training():
    clock = Clock(100.0, num_valid=100)
    assert clock.reserve(1) == 0
    clock.add_window(10, 9.0)
    assert clock.reserve(1) == 0
    clock.add_window(10, 2.0)
    assert clock.reserve(1) == 20.0
    clock.add_validation(5.0, num_components=1)
    assert clock.reserve(1) == 5.0


def test_what_a_larger_head_needs_is_found_out_anew():
    clock = Clock(100.0, num_valid=100)
    clock.add_window(10, 1.0)
    clock.add_window(10, 1.0)
    clock.add_validation(5.0, num_components=1)
    clock.add_growth(3.0)
    assert clock.reserve(4) == 5.0 and clock.speed is None
    clock.add_window(10, 4.0)
    assert clock.reserve(4) == 40.0
    clock.add_window(1000, 1.0)
    assert clock.reserve(4) == 5.0  # never less than before
    clock.add_validation(30.0, num_components=4)
    assert clock.reserve(4) == 30.0


def test_a_budget_that_has_ended_a_run_ends_it_for_good_and_a_longer_one_does_not():
    clock = Clock(10.0, num_valid=100)
    clock.add_validation(6.0, num_components=1)
    assert clock.is_over(1)
    clock.add_validation(0.1, num_components=1)
    assert not clock.is_over(1)
    clock.end()
    assert clock.is_over(1)
    for budget, is_over in ((None, True), (10.0, True), (20.0, False)):
        again = Clock(budget, num_valid=100)
        again.load_state_dict(clock.state_dict())
        assert again.is_over(1) == is_over and again.seconds == clock.seconds
