"""Runs: their files, their ends, and that a resumed one is the uninterrupted one."""

import functools
import itertools
import json
import os
import signal
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from highrank.config import StageConfig
from highrank.run.loading import load
from highrank.training import session
from highrank.training.outcome import Reason
from highrank.training.session import open_session


def weights(folder):
    return load_file(folder / "model.safetensors")


def metrics(folder):
    """All lines but those of steps, without what depends on the clock."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in lines if line["event"] != "step"]
    timed = ("seconds", "cpu_seconds")
    return [{k: v for k, v in line.items() if k not in timed} for line in lines]


def steps(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["train_loss"]) for line in lines if line["event"] == "step"]


def assert_same(one, two):
    assert metrics(one) == metrics(two)
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert steps(one) == steps(two)
    states = [torch.load(f / "trainer.pt", weights_only=True)["trainer"] for f in (one, two)]
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name]), name


def interrupt_at(step):
    """A progress callback that presses Ctrl-C once."""

    def show(progress):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return show


def test_a_run_writes_what_it_promises(config, corpus, tmp_path):
    outcome = open_session(config, corpus, tmp_path / "run").go()
    assert outcome.reason is Reason.FINISHED
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "model.safetensors", "metrics.jsonl", "trainer.pt"}
    assert names == files | {"vocabulary.json", "token_counts.json"}
    model, vocabulary = load(tmp_path / "run")
    assert vocabulary == corpus.vocabulary and not model.training
    lines = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 1, 2]
    assert [line["is_averaging"] for line in lines] == [False, True, True, True, True]
    assert outcome.best_valid_loss == min(line["valid_loss"] for line in lines)


def test_progress_after_an_epoch_is_of_the_whole_epoch(config, corpus, tmp_path):
    shown = []
    open_session(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    ends = [
        after
        for before, after in zip(shown, shown[1:], strict=False)
        if after.valid_loss != before.valid_loss
    ]
    lines = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert [(p.epoch, p.train_loss, p.valid_loss) for p in ends] == [
        (line["epoch"], line["train_loss"], line["valid_loss"]) for line in lines
    ]
    # The first window of a session is slow; its speed means nothing.
    assert shown[0].tokens_per_second is None
    assert all(progress.tokens_per_second > 0 for progress in shown[1:])


def test_a_run_resumed_in_validation_shows_the_epoch_that_it_ended(config, corpus, tmp_path):
    run = open_session(config, corpus, tmp_path / "run")
    while not run.batches.is_epoch_over:
        run._step(run.progress)
    run.save()
    del run  # it holds the folder
    shown = []
    open_session(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    first = metrics(tmp_path / "run")[0]
    assert shown[0].tokens_per_second is None and shown[0].epoch == 1
    assert (shown[0].train_loss, shown[0].valid_loss) == (first["train_loss"], first["valid_loss"])


def test_the_saved_model_has_the_validation_loss_that_was_written(config, corpus, tmp_path):
    from highrank.evaluation.static import evaluate

    outcome = open_session(config, corpus, tmp_path / "run").go()
    model, _ = load(tmp_path / "run")
    found = evaluate(model, corpus.split("valid"), config.valid_batch_size)
    assert found.nats == pytest.approx(outcome.best_valid_loss, rel=1e-6)


@pytest.fixture(scope="module")
def whole(config, corpus, tmp_path_factory):
    """An uninterrupted run, by precision."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def trained(precision):
        one = replace(config, precision=precision)
        with closing(open_session(one, corpus, folder / precision)) as session:
            assert session.go().reason is Reason.FINISHED
        return folder / precision

    return trained


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("step", [1, 15, 33, 80, 150])
def test_a_run_interrupted_and_resumed_is_the_uninterrupted_one(
    step, precision, whole, config, corpus, tmp_path
):
    config = replace(config, precision=precision)
    torch.rand(17)
    cut = open_session(config, corpus, tmp_path, on_progress=interrupt_at(step))
    assert cut.go().reason is Reason.INTERRUPTED
    cut.close()
    assert open_session(config, corpus, tmp_path).go().reason is Reason.FINISHED
    assert_same(tmp_path, whole(precision))


def test_a_stage_may_end_after_steps_or_tokens(config, corpus, tmp_path):
    """Within an epoch, and its schedule ends there, too."""
    stage = StageConfig(optimizer="adamw", lr=0.01, clip=1.0, anneal=True, steps=7)
    config = replace(config, train=stage, finetune=replace(stage, steps=None, tokens=500))
    run = open_session(config, corpus, tmp_path)
    assert run.go().reason is Reason.FINISHED
    lines = [line for line in run.log.read() if line["event"] == "epoch"]
    assert [(line["stage"], line["epoch"]) for line in lines] == [("train", 1), ("finetune", 1)]
    assert lines[0]["step"] == 7 and lines[0]["progress"] == 1
    assert 500 <= lines[1]["tokens"] - lines[0]["tokens"] < 500 + 4 * 20
    assert run.trainer.optimizer.param_groups[0]["lr"] < 0.002


def test_a_finished_run_has_nothing_left_to_do(config, corpus, tmp_path):
    open_session(config, corpus, tmp_path / "run").go()
    before = metrics(tmp_path / "run")
    assert open_session(config, corpus, tmp_path / "run").go().reason is Reason.FINISHED
    assert metrics(tmp_path / "run") == before


def test_a_budget_ends_the_run_with_everything_saved(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    outcome = open_session(endless, corpus, tmp_path / "run", budget=2.0).go()
    assert outcome.reason is Reason.OUT_OF_TIME and outcome.seconds < 60
    assert load(tmp_path / "run")[0].head.num_components == 3


def test_saving_takes_of_the_budget(config, corpus, tmp_path, monkeypatch):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    # Ten seconds pass between two looks at this clock, whatever training takes.
    monkeypatch.setattr(session.time, "perf_counter", itertools.count(0, 10).__next__)
    run = open_session(endless, corpus, tmp_path / "run", budget=60.0)
    assert run.go().reason is Reason.OUT_OF_TIME and run.trainer.num_steps <= 6


def test_a_run_that_is_out_of_time_stays_so(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    open_session(endless, corpus, tmp_path / "run", budget=1.0).go()
    before = metrics(tmp_path / "run")
    assert (
        open_session(endless, corpus, tmp_path / "run", budget=1.0).go().reason
        is Reason.OUT_OF_TIME
    )
    assert metrics(tmp_path / "run") == before
    assert (
        open_session(endless, corpus, tmp_path / "run", budget=2.0).go().reason
        is Reason.OUT_OF_TIME
    )
    assert metrics(tmp_path / "run")[: len(before)] == before
    assert len(metrics(tmp_path / "run")) > len(before)


def test_a_run_that_goes_on_keeps_its_budget(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    folder = tmp_path / "run"
    open_session(endless, corpus, folder, budget=60.0, on_progress=interrupt_at(20)).go()
    assert open_session(endless, corpus, folder).clock.budget == 60.0
    assert open_session(endless, corpus, folder, budget=1.0).go().reason is Reason.OUT_OF_TIME
    before = metrics(folder)
    assert open_session(endless, corpus, folder).go().reason is Reason.OUT_OF_TIME
    assert metrics(folder) == before


def test_a_run_that_its_budget_ended_does_not_go_on_because_the_end_was_quick(
    config, corpus, tmp_path
):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    run = open_session(endless, corpus, tmp_path / "run", budget=10.0)
    run.clock.add_validation(9.0)
    assert run.go().reason is Reason.OUT_OF_TIME and run.clock.seconds < 10.0
    del run  # it holds the folder
    before = metrics(tmp_path / "run")
    assert open_session(endless, corpus, tmp_path / "run").go().reason is Reason.OUT_OF_TIME
    assert metrics(tmp_path / "run") == before


def test_progress_never_goes_back_in_a_run_with_a_budget(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    shown = []
    open_session(endless, corpus, tmp_path / "run", budget=1.0, on_progress=shown.append).go()
    fractions = [progress.fraction for progress in shown]
    assert fractions == sorted(fractions) and fractions[-1] == 1


@pytest.mark.parametrize("damage", ["", "zeros", None])
def test_a_lost_log_comes_back_from_the_checkpoint(damage, config, corpus, tmp_path):
    open_session(config, corpus, tmp_path / "run").go()
    path = tmp_path / "run" / "metrics.jsonl"
    before = path.read_text()
    path.unlink() if damage is None else path.write_text(damage and "\0" * len(before))
    open_session(config, corpus, tmp_path / "run")
    assert path.read_text() == before


def test_checkpoints_come_by_the_clock_too_and_change_nothing(
    config, corpus, tmp_path, monkeypatch
):
    open_session(config, corpus, tmp_path / "rare").go()
    monkeypatch.setattr(session, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    open_session(config, corpus, tmp_path / "often").go()
    assert_same(tmp_path / "rare", tmp_path / "often")


def test_validating_more_often_changes_nothing_but_the_log(config, corpus, tmp_path):
    config = replace(config, finetune=None, train=replace(config.train, epochs=2))
    open_session(config, corpus, tmp_path / "seldom").go()
    often = replace(config, validate_every=100)
    open_session(often, corpus, tmp_path / "often").go()
    states = [
        torch.load(tmp_path / name / "trainer.pt", weights_only=True)
        for name in ("seldom", "often")
    ]
    for name, tensor in states[0]["trainer"]["model"].items():
        assert torch.equal(tensor, states[1]["trainer"]["model"][name]), name
    assert states[0]["schedule"] == states[1]["schedule"]
    seldom, lines = (
        [line for line in metrics(tmp_path / name) if line["event"] == "epoch"]
        for name in ("seldom", "often")
    )
    assert len(lines) > len(seldom) and all(line in lines for line in seldom)
    gaps = [b["tokens"] - a["tokens"] for a, b in zip(lines, lines[1:], strict=False)]
    assert max(gaps) < 100 + config.batch.batch_size * 40


def test_a_run_that_validates_often_resumes_to_the_bit(config, corpus, tmp_path):
    config = replace(config, finetune=None, validate_every=100)
    open_session(config, corpus, tmp_path / "whole").go()
    open_session(config, corpus, tmp_path / "cut", on_progress=interrupt_at(5)).go()
    open_session(config, corpus, tmp_path / "cut").go()
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_pauses_and_validates_in_between_is_the_same_run(config, corpus, tmp_path):
    config = replace(config, train=replace(config.train, average_power=4.0))
    open_session(config, corpus, tmp_path / "whole").go()
    for stop in (7, 40, None):
        run = open_session(config, corpus, tmp_path / "parts")
        reason = run.go(pause_when=lambda run=run, stop=stop: run.trainer.num_steps == stop).reason
        assert reason is (Reason.FINISHED if stop is None else Reason.PAUSED)
        assert stop in (None, run.trainer.num_steps) and run.clock.cpu_seconds > 0
        # It holds the folder.
        del run
        torch.rand(5)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_validates_within_an_epoch_when_it_is_asked_to(config, corpus, tmp_path):
    run = open_session(config, corpus, tmp_path / "run")
    due = [5, 9]

    def is_due():
        return bool(due) and run.trainer.num_steps >= due[0] and bool(due.pop(0))

    run.go(pause_when=lambda: run.trainer.num_steps == 12, validate_when=is_due)
    lines = [line for line in run.log.read() if line["event"] == "epoch"]
    assert [line["step"] for line in lines] == [5, 9]
    assert {line["epoch"] for line in lines} == {1} and run.schedule.epoch == 1
    assert run.best == min(line["valid_loss"] for line in lines)
