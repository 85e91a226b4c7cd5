"""A comparison that is trained in turns, stopped and resumed."""

import json
import os
import signal

import pytest

from highrank.studies.compare import schedule
from highrank.studies.compare.measure import summarise
from highrank.studies.compare.record import RunState
from highrank.studies.compare.schedule import train
from highrank.training.session import Session
from highrank.training.signals import Stopped


@pytest.fixture
def trained(monkeypatch):
    """Names of the runs that were trained, slice by slice."""
    found, advance = [], schedule.VariantRun.advance

    def note(self, cpu_seconds):
        found.append(self.run.folder.name)
        return advance(self, cpu_seconds)

    monkeypatch.setattr(schedule.VariantRun, "advance", note)
    return found


def test_a_comparison_is_trained_in_turns_and_never_twice(written, folder, trained):
    plan = written("mos", "mos+pointer")
    shown = []
    train(plan, folder, lambda fraction, text: shown.append(fraction))
    names = [f"{v.name}-seed{seed}" for seed in (0, 1) for v in plan.variants]
    assert set(trained) == set(names)
    assert [name[-1] for name in trained] == sorted(name[-1] for name in trained)
    assert shown == sorted(shown) and shown[-1] == pytest.approx(1.0)
    trained.clear()
    train(plan, folder)
    assert trained == []


def test_a_run_that_is_killed_at_its_end_is_whole(written, folder):
    # Whatever is killed after the last line is not trained again: that line must be the last.
    plan = written("mos")
    train(plan, folder)
    want = summarise(plan, folder)
    for index in range(len(plan.variants)):
        run = plan.run_folder(folder, index, 0)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines[-2:]] == ["slice", "analysis"]
        (run / ".trainer.pt.new").write_bytes(b"half of it")
    train(plan, folder)
    assert summarise(plan, folder).runs == want.runs
    assert not list(folder.rglob("*.new"))


def test_what_ctrl_c_leaves_is_reported_and_resumed(written, folder, trained, monkeypatch):
    plan, step = written("mos"), Session._step
    count = []

    def press(self, *arguments):
        step(self, *arguments)
        count.append(1)
        if len(count) == 50:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_step", press)
    with pytest.raises(Stopped) as stopped:
        train(plan, folder)
    assert stopped.value.args == (signal.SIGINT,)
    partial = summarise(plan, folder)
    finished = {f"{r.variant}-seed{r.seed}" for r in partial.runs if r.state is RunState.FINISHED}
    assert finished and not partial.is_complete
    assert "So far: One seed decides nothing" in partial.answer
    trained.clear()
    train(plan, folder)
    assert trained and not set(trained) & finished
    assert summarise(plan, folder).is_complete


def test_a_signal_while_a_run_is_measured_loses_nothing(written, folder, monkeypatch):
    plan, measure = written("mos"), schedule.VariantRun._analyse

    def press(self):
        os.kill(os.getpid(), signal.SIGTERM)
        measure(self)

    monkeypatch.setattr(schedule.VariantRun, "_analyse", press)
    with pytest.raises(Stopped) as stopped:
        train(plan, folder)
    assert stopped.value.args == (signal.SIGTERM,)
    monkeypatch.undo()
    before = summarise(plan, folder).runs[0]
    assert before.state is RunState.UNFINISHED and before.marks
    train(plan, folder)
    after = summarise(plan, folder).runs[0]
    assert after.state is RunState.FINISHED and after.marks == before.marks
    # The turn that was cut short counts, too.
    assert before.tokens == after.tokens == after.marks["tokens"].tokens
