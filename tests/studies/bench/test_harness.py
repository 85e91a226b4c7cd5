import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from highrank.studies.bench import harness
from highrank.studies.bench.harness import (
    Peak,
    Variant,
    compare,
    counter,
    part,
    peak_memory,
    take_times,
    turn,
)

MIB = 2**20


def recorder(log, name, value=None):
    """A variant that writes its name down whenever it works."""

    def work():
        log.append(name)
        return value

    return Variant(name=name, prepare=lambda: work)


@pytest.fixture
def without_memory(monkeypatch):
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: Peak(None))
    return partial(compare, baselines=("a",))


@pytest.mark.parametrize("num_variants", [1, 2, 3, 7])
def test_every_round_has_each_variant_once_and_none_twice_in_a_row(num_variants):
    names = [str(i) for i in range(num_variants)]
    rounds = [turn(names, index) for index in range(6)]
    assert all(sorted(order) == names for order in rounds)
    if num_variants > 2:
        assert all(a[-1] != b[0] for a, b in zip(rounds, rounds[1:], strict=False))
        assert len({order[0] for order in rounds}) > 1


def test_variants_warm_up_once_and_then_take_turns(without_memory):
    log = []
    without_memory([recorder(log, name) for name in "abc"], rounds=3)
    assert "".join(log) == "abc" + "abc" + "acb" + "cab"


def test_the_best_round_counts_and_ratios_are_of_best_rounds(without_memory, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

    def working(durations):
        return lambda: clock.append(clock.pop() + durations.pop(0))

    # The first is the warm-up's.
    durations = {"a": [0.0, 5.0, 2.0], "b": [0.0, 4.0, 9.0]}
    variants = [Variant(name=n, prepare=partial(working, durations[n])) for n in durations]
    a, b = without_memory(variants, rounds=2)
    assert (a.times, a.best, a.time_ratios) == ((5.0, 2.0), 2.0, {"a": 1.0})
    assert (b.times, b.best, b.time_ratios) == ((4.0, 9.0), 4.0, {"a": 2.0})


def test_a_check_sees_all_values_before_any_time_is_taken(without_memory):
    log, seen = [], []

    def check(values):
        seen.append((dict(values), list(log)))
        return {"b": "a note"}

    a, b = without_memory([recorder(log, "a", 1), recorder(log, "b", 2.5)], rounds=1, check=check)
    assert seen == [({"a": 1, "b": 2.5}, ["a", "b"])]
    assert (a.value, b.value, b.note) == (1.0, 2.5, "a note")


def test_a_check_that_raises_ends_the_run(without_memory):
    def check(values):
        raise RuntimeError("losses must agree")

    with pytest.raises(RuntimeError, match="losses must agree"):
        without_memory([recorder([], "a", 1)], rounds=1, check=check)


def test_a_variant_that_cannot_take_part_is_listed_with_the_reason(without_memory):
    skipped = Variant(name="b", prepare=lambda: None, skip="needs another torch")
    a, b = without_memory([recorder([], "a"), skipped], rounds=1)
    assert a.failure is None
    assert (b.failure, b.times, b.best, b.time_ratios) == ("needs another torch", (), None, {})


def test_memory_ratios_are_to_the_baseline(monkeypatch):
    peaks = iter((Peak(10), Peak(25), Peak(None)))
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: next(peaks))
    results = compare([recorder([], name) for name in "abc"], rounds=1, baselines=("a",))
    assert [m.peak_bytes for m in results] == [10, 25, None]
    assert [m.memory_ratios for m in results] == [{"a": 1.0}, {"a": 2.5}, {}]


def test_what_ended_its_process_is_not_tried_in_this_one(monkeypatch):
    log, peaks = [], iter((Peak(10), Peak(None, "the process was killed")))
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: next(peaks))
    a, b = compare([recorder(log, "a"), recorder(log, "b")], rounds=2, baselines=("a",))
    assert log == ["a"] * 3
    assert (b.failure, b.peak_bytes, b.best) == ("the process was killed", None, None)


def test_progress_grows_and_a_part_of_it_stays_in_its_place(without_memory):
    shown = []
    variants = [recorder([], "a"), recorder([], "b")]
    own = part(lambda fraction, text: shown.append((fraction, text)), 0.5, 1.0, "ptb: ")
    without_memory(variants, rounds=2, on_progress=own)
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions)
    assert shown[0] == (0.5, "ptb: memory of a") and 0.8 < fractions[-1] < 1


def test_pieces_of_work_count_by_their_cost():
    shown = []
    begin = counter(lambda fraction, text: shown.append((fraction, text)), total=4)
    begin("dear", 3)
    begin("cheap")
    begin("end")
    assert shown == [(0, "dear"), (0.75, "cheap"), (1, "end")]


def test_no_rounds_are_an_error(without_memory):
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        without_memory([recorder([], "a")], rounds=0)


def test_nothing_to_time_takes_no_time():
    assert take_times({}, 2) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("allocate", [bytearray, partial(torch.ones, dtype=torch.uint8)])
def test_memory_of_a_known_size_is_measured(allocate):
    peak = peak_memory(partial(partial, allocate, 64 * MIB), partial(partial, torch.ones, 8))
    assert peak.failure is None
    assert peak.num_bytes == pytest.approx(64 * MIB, rel=0.25)


@pytest.mark.parametrize(
    "work, reason",
    [
        (partial(os._exit, 3), "the process ended with code 3"),
        (partial(os.abort), "the process was ended by SIGABRT"),
        (partial(int, "x"), "ValueError: invalid literal for int() with base 10: 'x'"),
    ],
    ids=["exit", "abort", "error"],
)
def test_a_process_that_fails_is_a_result_with_its_reason(work, reason):
    assert peak_memory(partial(partial, work)) == Peak(None, reason)


def test_a_killed_process_may_have_been_out_of_memory():
    assert "out of memory?" in harness._failure(-signal.SIGKILL, "")


def test_the_process_has_as_many_threads_as_this_one(monkeypatch):
    # The number of threads comes back as the code with which the process ends.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    code = "import os, torch; os._exit(torch.get_num_threads())"
    assert peak_memory(partial(partial, exec, code)).failure == "the process ended with code 3"


def test_an_interrupt_ends_the_process(monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            peak_memory(partial(partial, time.sleep, 60))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [child.returncode for child in started] == [-signal.SIGKILL]
