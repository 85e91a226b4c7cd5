"""A run of a variant in slices: where it is measured, what survives, what is never done twice."""

import json

import pytest
import torch
from safetensors.torch import load_file

from highrank.evaluation.static import evaluate
from highrank.run.loading import load
from highrank.studies.compare.plan import NUM_POINTS
from highrank.studies.compare.presets import open_source
from highrank.studies.compare.record import RunState
from highrank.studies.compare.schedule import VariantRun, next_point
from highrank.training.trainer import Diverged, Trainer


def lines(plan, folder, index=0, seed=0):
    path = plan.run_folder(folder, index, seed) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(found, event):
    return [line for line in found if line["event"] == event]


def finish(plan, folder, index=0, seed=0, seconds=1e9):
    """Train in slices of so many seconds; returns the state after each."""
    states = []
    while not states or not states[-1].is_final:
        states.append(VariantRun(plan, folder, index, seed).advance(seconds))
    return states


def test_a_run_is_measured_at_equal_tokens(written, folder):
    plan = written("mos")
    assert finish(plan, folder, 1) == [RunState.FINISHED]
    found = lines(plan, folder, 1)
    (mark,) = events(found, "mark")
    assert plan.num_tokens <= mark["tokens"] < plan.num_tokens + 4 * 8
    assert mark["valid_loss"] == min(line["valid_loss"] for line in events(found, "epoch"))
    model, _ = load(plan.run_folder(folder, 1, 0))
    test = evaluate(model, open_source(plan.corpus).split("test"), plan.test_batch_size)
    assert mark["test_loss"] == pytest.approx(test.nats, rel=1e-6)
    (analysis,) = events(found, "analysis")
    assert analysis["specialisation"] >= 0 and analysis["effective_rank_1e-3"] >= 1


def test_slices_change_nothing(written, folder):
    plan = written("mos", seeds=(0,))
    whole, parts = folder / "whole", folder / "parts"
    finish(plan, whole)
    assert len(finish(plan, parts, seconds=0.005)) > 2
    for name in ("epoch", "mark", "analysis"):
        one, other = (events(lines(plan, where), name) for where in (whole, parts))
        for line in (*one, *other):
            for clock in ("seconds", "cpu_seconds", "data_seconds"):
                line.pop(clock, None)
        assert one == other
    first, second = (
        load_file(plan.run_folder(where, 0, 0) / "model.safetensors") for where in (whole, parts)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_equal_time_ends_a_run_that_has_its_tokens(written, folder):
    plan = written("mos", cpu_seconds=0.2, num_tokens=200)
    finish(plan, folder)
    marks = events(lines(plan, folder), "mark")
    assert [mark["regime"] for mark in marks] == ["tokens", "time"]
    assert marks[0]["tokens"] < marks[1]["tokens"] and marks[1]["cpu_seconds"] >= 0.2


def test_a_run_that_diverges_is_noted_and_stays_so(written, folder, monkeypatch):
    plan, step = written("mos"), Trainer.step

    def fail(self, *arguments):
        if self.num_steps == 5:
            raise Diverged("the loss is nan")
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "step", fail)
    assert finish(plan, folder) == [RunState.DIVERGED]
    monkeypatch.undo()
    assert finish(plan, folder) == [RunState.DIVERGED]
    (line,) = events(lines(plan, folder), "diverged")
    assert "the run diverged at step 6" in line["reason"] and line["step"] == 5


def test_the_control_is_evaluated_with_a_cache(written, folder):
    plan = written("mos", cache=True)
    for index in (0, 1):
        finish(plan, folder, index)
    (control,) = events(lines(plan, folder), "mark")
    (mos,) = events(lines(plan, folder, 1), "mark")
    assert "cache" not in mos
    # One stream instead of two: a little better, and a cache with weight 0 is in the grid.
    assert control["cache_test_loss"] < control["test_loss"] + 0.1
    assert control["cache"]["window"] in (100, 500, 2000)


def test_validations_are_at_powers_of_the_root_of_two():
    point, found = 0, []
    for _ in range(NUM_POINTS + 4):
        point = next_point(1_000, point)
        found.append(point)
    assert found[NUM_POINTS] == 1_000 and found[NUM_POINTS + 2] == pytest.approx(2_000)
    assert all(
        b / a == pytest.approx(2**0.5, rel=0.05) for a, b in zip(found, found[1:], strict=False)
    )
