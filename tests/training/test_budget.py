"""The time of a run: speed, what is kept for the last validation, and when it is over."""

import time

import numpy as np
import pytest

from highrank.training import budget as module
from highrank.training.budget import Clock, parse_duration, seconds_of_test


def make_clock(budget=None):
    clock = Clock(num_valid=100)
    if budget is not None:
        clock.set_budget(budget)
    return clock


def test_the_speed_is_of_the_last_windows_without_the_first_of_a_session():
    clock = make_clock()
    clock.add_window(10, 0.0)
    clock.add_window(10, 0.0)
    assert clock.speed is None and clock.progress() == 0 and not clock.is_over()
    clock = make_clock()
    clock.add_window(10, 5.0)
    assert clock.speed is None
    for _ in range(60):
        clock.add_window(10, 1.0)
    clock.add_window(10, 11.0)
    assert clock.speed == pytest.approx(500 / 60) and clock.seconds == 76.0


def test_time_is_over_when_only_the_last_validation_fits_in():
    clock = make_clock(10.0)
    clock.add_validation(3.0)
    assert clock.progress() == pytest.approx(3 / 7) and not clock.is_over()
    clock.add_window(10, 4.0)
    assert clock.progress() == 1 and clock.is_over()


def test_before_a_validation_a_token_takes_as_long_as_in_training():
    clock = make_clock(100.0)
    assert clock.reserve == 0
    clock.add_window(10, 9.0)
    assert clock.reserve == 0
    clock.add_window(10, 2.0)
    assert clock.reserve == 20.0
    clock.add_validation(5.0)
    assert clock.reserve == 5.0


def test_a_budget_that_has_ended_a_run_ends_it_for_good_and_a_longer_one_does_not():
    clock = make_clock(10.0)
    clock.add_validation(6.0)
    assert clock.is_over()
    clock.add_validation(0.1)
    assert not clock.is_over()
    clock.end()
    assert clock.is_over()
    for budget, is_over in ((None, True), (10.0, True), (20.0, False)):
        again = make_clock()
        again.load_state_dict(clock.state_dict())
        if budget is not None:
            again.set_budget(budget)
        assert again.is_over() == is_over and again.seconds == clock.seconds


@pytest.mark.parametrize(("batch_size", "piece"), [(1, 500), (10, 500), (50, 1000)])
def test_the_test_is_timed_on_a_short_piece(batch_size, piece, monkeypatch):
    lengths, times = [], iter([100.0, 103.0])
    monkeypatch.setattr(
        module, "evaluate", lambda _, tokens, *__, **___: lengths.append(len(tokens))
    )
    found = seconds_of_test(None, np.zeros(2000), batch_size, lambda: next(times))
    assert found == pytest.approx(3 * 2000 / piece)
    assert lengths == [20 * batch_size, piece]


def test_what_is_neither_a_window_nor_a_validation_counts():
    clock = make_clock(100.0)
    clock.seconds = 7.0
    clock.start_session()
    clock.add_window(10, 3.0)
    clock.add_rest(2.0)
    assert clock.seconds == 10.0
    clock.add_rest(5.0)
    assert clock.seconds == 12.0 and clock.window_seconds == 3.0
    clock.add_window(10, 1.0)
    assert clock.seconds == 13.0


def test_a_window_has_waited_for_a_core_while_its_thread_did_not_compute():
    clock = make_clock(100.0)
    assert clock.waiting_fraction == 0.0
    # Two threads that compute, and then hardly one of them.
    clock.add_window(10, 3.0, 6.0, 3.0)
    clock.add_window(10, 5.0, 2.0, 1.0)
    assert clock.waiting_fraction == 0.5
    again = make_clock()
    again.load_state_dict(clock.state_dict())
    assert again.waiting_fraction == 0.5
    start = module.read_clocks()
    time.sleep(0.05)
    wall, cpu, thread = module.seconds_since(start)
    assert wall >= 0.05 > max(cpu, thread) and min(cpu, thread) >= 0


def test_progress_never_goes_back():
    clock = make_clock(100.0)
    clock.add_window(10, 1.0)
    clock.add_window(10, 8.0)
    before = clock.progress()
    clock.add_validation(1.0)
    assert clock.reserve == 1.0 and clock.progress() == before > 0.1
    again = make_clock()
    again.load_state_dict(clock.state_dict())
    assert again.progress() == before
    again.set_budget(1000.0)
    assert again.progress() < before


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_durations_are_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0s", "-1m", "1d", "", "9" * 400 + "h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="a duration must be like 90s, 20m or 1.5h, got"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5", "1.5", "0"])
def test_a_duration_has_a_unit(text):
    with pytest.raises(ValueError, match=f"--budget must have a unit, such as 5m .*, got {text}$"):
        parse_duration(text)
