import multiprocessing
import os
import signal
import sys
import time
from functools import partial

import pytest
import torch

from highrank.studies.bench import harness
from highrank.studies.bench.harness import Peak, Variant, measure, peak_memory, turn

MIB = 2**20


def recorder(log, name, value=None):
    """A variant that writes its name down whenever it works."""

    def work():
        log.append(name)
        return value

    return Variant(name=name, prepare=lambda: work)


@pytest.fixture
def compare(monkeypatch):
    """Measure one group of variants without memory; returns their measurements."""
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: Peak(None))
    return compare_with_memory


def compare_with_memory(variants, **options):
    text = {"title": "Title", "method": "Method", "baselines": ("a",)}
    (group,) = measure({"group": variants}, **text, **options).groups
    return group.measurements


@pytest.mark.parametrize("num_variants", [1, 2, 3, 7])
def test_every_round_has_each_variant_once_and_none_twice_in_a_row(num_variants):
    names = [str(i) for i in range(num_variants)]
    rounds = [turn(names, index) for index in range(6)]
    assert all(sorted(order) == names for order in rounds)
    if num_variants > 2:
        assert all(a[-1] != b[0] for a, b in zip(rounds, rounds[1:], strict=False))
        assert len({order[0] for order in rounds}) > 1


def test_variants_warm_up_once_and_then_take_turns(compare):
    log = []
    compare([recorder(log, name) for name in "abc"], rounds=3)
    assert "".join(log) == "abc" + "abc" + "acb" + "cab"


def test_the_best_round_counts_and_ratios_are_of_best_rounds(compare, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

    def working(durations):
        return lambda: clock.append(clock.pop() + durations.pop(0))

    # The first is the warm-up's.
    durations = {"a": [0.0, 5.0, 2.0], "b": [0.0, 4.0, 9.0]}
    variants = [Variant(name=n, prepare=partial(working, durations[n])) for n in durations]
    a, b = compare(variants, rounds=2)
    assert (a.times, a.best, a.time_ratios) == ((5.0, 2.0), 2.0, {"a": 1.0})
    assert (b.times, b.best, b.time_ratios) == ((4.0, 9.0), 4.0, {"a": 2.0})


def test_a_check_sees_all_values_before_any_time_is_taken(compare):
    log, seen = [], []

    def check(group, values):
        seen.append((group, dict(values), list(log)))
        return {"b": "a note"}

    a, b = compare([recorder(log, "a", 1), recorder(log, "b", 2.5)], rounds=1, check=check)
    assert seen == [("group", {"a": 1, "b": 2.5}, ["a", "b"])]
    assert (a.value, b.value, b.note) == (1.0, 2.5, "a note")


def test_a_variant_that_cannot_take_part_is_listed_with_the_reason(compare):
    skipped = Variant(name="b", prepare=lambda: None, skip="needs another torch")
    a, b = compare([recorder([], "a"), skipped], rounds=1)
    assert a.failure is None
    assert (b.failure, b.times, b.best, b.time_ratios) == ("needs another torch", (), None, {})


def test_memory_ratios_are_to_the_baseline(monkeypatch):
    peaks = iter((Peak(10), Peak(25), Peak(None)))
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: next(peaks))
    results = compare_with_memory([recorder([], name) for name in "abc"], rounds=1)
    assert [m.peak_bytes for m in results] == [10, 25, None]
    assert [m.memory_ratios for m in results] == [{"a": 1.0}, {"a": 2.5}, {}]


def test_what_ended_its_process_is_not_tried_in_this_one(monkeypatch):
    log, peaks = [], iter((Peak(10), Peak(None, "the process was killed")))
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, warm_up: next(peaks))
    a, b = compare_with_memory([recorder(log, "a"), recorder(log, "b")], rounds=2)
    assert log == ["a"] * 3
    assert (b.failure, b.peak_bytes, b.best) == ("the process was killed", None, None)


def test_groups_are_measured_one_after_another_and_progress_grows(compare):
    shown, log = [], []
    groups = {name: [recorder(log, name + variant) for variant in "ab"] for name in "xy"}
    result = measure(
        groups,
        title="",
        method="",
        baselines=("xa",),
        rounds=2,
        on_progress=lambda fraction, text: shown.append((fraction, text)),
    )
    assert [group.name for group in result.groups] == ["x", "y"]
    assert sorted(log[:6]) == sorted(["xa", "xb"] * 3)
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions) and fractions[0] == 0 and 0.9 < fractions[-1] < 1
    assert shown[0][1] == "memory of xa" and shown[-1][1] == "time of yb"


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
        (partial(os.abort), "the process ended by SIGABRT"),
        (partial(int, "x"), "ValueError: invalid literal for int() with base 10: 'x'"),
    ],
    ids=["exit", "abort", "error"],
)
def test_a_process_that_fails_is_a_result_with_its_reason(work, reason):
    assert peak_memory(partial(partial, work)) == Peak(None, reason)


def test_the_process_has_as_many_threads_as_this_one(monkeypatch):
    # The number of threads comes back as the code with which the process ends.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    code = "import os, torch; os._exit(torch.get_num_threads())"
    assert peak_memory(partial(partial, exec, code)).failure == "the process ended with code 3"


def test_an_interrupt_ends_the_process():
    def interrupt(*_):
        raise KeyboardInterrupt

    children = multiprocessing.active_children()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            peak_memory(partial(partial, time.sleep, 60))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert set(multiprocessing.active_children()) <= set(children)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
