"""What is read back from the logs of runs, whole or not; and learning curves."""

import json
from dataclasses import replace

import pytest

from highrank.studies.compare.record import Point, break_even, loss_at, mean_loss_at, read_runs
from highrank.studies.compare.schedule import Schedule


def write(plan, folder, index, seed, *events):
    run = plan.run_folder(folder, index, seed)
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def a_slice(cpu_seconds=1.0, seconds=1.1, tokens=100):
    return {"event": "slice", "tokens": tokens, "cpu_seconds": cpu_seconds, "seconds": seconds}


def a_mark(**more):
    names = ("step", "tokens", "cpu_seconds", "seconds", "train_loss", "test_loss")
    return {"event": "mark", "regime": "tokens", "valid_loss": 2.0} | dict.fromkeys(names, 1) | more


def test_states_marks_and_sums(written, folder):
    plan = written("mos")
    cached = {"cache": {}, "cache_valid_loss": 1.5, "cache_test_loss": 1.6}
    write(plan, folder, 0, 0, a_slice(), a_slice(), a_mark(**cached), {"event": "analysis", "x": 3})
    write(plan, folder, 0, 1, a_slice())
    write(plan, folder, 1, 0, {"event": "diverged", "reason": "at step 5"})
    path = plan.run_folder(folder, 0, 1) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"event": "sl')
    runs = read_runs(plan, folder)
    assert [run.state for run in runs] == ["finished", "unfinished", "diverged", "not begun"]
    first = runs[0]
    assert (first.tokens, first.cpu_seconds, first.analysis) == (200, 2.0, {"x": 3})
    assert first.marks["tokens"].gap == 1.0 and first.methods["cache"]["tokens"].valid_loss == 1.5
    assert runs[2].note == "at step 5"


WAITED, SLOWED = [a_slice(seconds=2.0)] * 2, [a_slice(), a_slice(cpu_seconds=1.6)]


@pytest.mark.parametrize("strange", [WAITED, SLOWED])
def test_a_disturbed_run_is_flagged(written, folder, strange):
    plan = written("mos")
    for index, seed in ((0, 0), (0, 1), (1, 0)):
        write(plan, folder, index, seed, a_slice(), a_slice(cpu_seconds=1.05))
    write(plan, folder, 1, 1, *strange)
    assert [run.is_disturbed for run in read_runs(plan, folder)] == [False, False, False, True]


def test_the_run_that_is_furthest_behind_is_next_and_seeds_come_in_turn(written, folder):
    plan = written("mos", "moc", cpu_seconds=8.0)
    write(plan, folder, 0, 0, a_slice(cpu_seconds=4.0))
    write(plan, folder, 1, 0, a_slice(cpu_seconds=2.0))
    write(plan, folder, 2, 0, a_mark(), {"event": "analysis"})
    schedule = Schedule(plan, read_runs(plan, folder))
    task = schedule.next_slice(set())
    assert (task.index, task.seed, task.cpu_seconds) == (1, 0, 2.0)
    assert schedule.next_slice({(1, 0)}).index == 0
    assert schedule.next_slice({(0, 0), (1, 0)}).seed == 1
    assert 0.2 < schedule.fraction < 0.4
    everything = {(index, seed) for index in range(3) for seed in (0, 1)}
    assert schedule.next_slice(everything) is None


def curve(*losses):
    return [
        Point(tokens=100 * 2**n, cpu_seconds=2.0**n, train_loss=loss, valid_loss=loss)
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


def test_time_is_worth_what_the_control_would_win_with_it():
    higher = [replace(point, valid_loss=point.valid_loss + 1) for point in POWER_LAW]
    found = mean_loss_at([POWER_LAW, higher], 400)
    assert found == pytest.approx(loss_at(POWER_LAW, 400) + 0.5)
    assert break_even([POWER_LAW], 400, 1.0) == 0
    assert break_even([POWER_LAW], 400, 2.0) == pytest.approx(5 * (4**-0.1 - 8**-0.1))
    # A cheaper head may be worse.
    assert break_even([POWER_LAW], 400, 0.5) == pytest.approx(-5 * (2**-0.1 - 4**-0.1))
