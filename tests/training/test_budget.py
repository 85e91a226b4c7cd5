"""The time of a run: speed, what is kept for the last validation, and when it is over."""

import numpy as np
import pytest

from highrank.training import budget as module
from highrank.training.budget import Clock, parse_duration, without_test


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


def test_the_test_at_the_end_has_its_part_of_the_budget(monkeypatch):
    lengths, times = [], iter([100.0, 103.0])
    monkeypatch.setattr(module, "evaluate", lambda model, tokens, **_: lengths.append(len(tokens)))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    # 500 tokens take 3 s, so 2,000 take 12 s.
    assert without_test(60.0, None, np.zeros(2000)) == pytest.approx(48.0)
    assert lengths == [20, 500]


def test_a_budget_shorter_than_the_test_is_refused(monkeypatch):
    times = iter([100.0, 103.0])
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: None)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    with pytest.raises(
        ValueError, match="longer than the test, which takes about 12 s .* got 12 s"
    ):
        without_test(12.0, None, np.zeros(2000))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1.5h", 5400), ("7", 7)]
)
def test_durations_are_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0s", "-1m", "1d", ""])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="a duration must be like 90s, 20m or 1.5h, got"):
        parse_duration(text)
