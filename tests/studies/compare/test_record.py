"""What is read back from the logs of runs, whole or not."""

import json

import pytest

from highrank.studies.compare.record import read_runs
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
    assert first.marks["tokens"].gap == 1.0 and first.cache["tokens"].valid_loss == 1.5
    assert runs[2].note == "at step 5"


@pytest.mark.parametrize(
    "strange",
    [
        [a_slice(seconds=2.0), a_slice(seconds=2.0)],
        [a_slice(), a_slice(cpu_seconds=1.6)],
    ],
    ids=["it waited", "its speed changed"],
)
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
    later = schedule.next_slice({(0, 0), (1, 0)})
    assert later.seed == 1
    assert 0.2 < schedule.fraction < 0.4
    everything = {(index, seed) for index in range(3) for seed in (0, 1)}
    assert schedule.next_slice(everything) is None
