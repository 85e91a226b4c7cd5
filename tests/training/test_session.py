"""Runs: their files, their ends, and that a resumed one is the uninterrupted one."""

import functools
import itertools
import json
import os
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from highrank.config import BatchConfig, ModelConfig, StageConfig
from highrank.evaluation.static import evaluate
from highrank.run.loading import load
from highrank.training import session
from highrank.training.outcome import Reason
from highrank.training.session import open_session

STAGE = StageConfig(lr=1.0, epochs=2, switch_epoch=1, clip=1.0, average_power=4.0)
SHORT = {"finetune": None, "train": STAGE}
BLOCKS = BatchConfig(kind="blocks", batch_size=7, options={"length": 20})
SENTENCES = BatchConfig(kind="sentences", batch_size=6, options={"length": 9})
DROPOUTS = {f"{name}_dropout": 0.3 for name in ("embedding", "input", "hidden", "output")}
SIZES = {
    "transformer": {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "memory": 5},
    "gated-cnn": {"hidden_size": 8, "num_blocks": 2},
}
NETWORKS = {
    kind: SHORT | {"model": ModelConfig(kind=kind, embedding_size=6, options=sizes | DROPOUTS)}
    for kind, sizes in SIZES.items()
}
CHANGES = {
    "none": {},
    "bfloat16": {"precision": "bfloat16"},
    "short": SHORT,
    "often": SHORT | {"validate_every": 100},
    "blocks": SHORT | {"batch": BLOCKS},
    "sentences": SHORT | {"batch": SENTENCES},
    **NETWORKS,
}


def weights(folder):
    return load_file(folder / "model.safetensors")


def metrics(folder):
    """All lines but those of steps, without what depends on the clock."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in lines if line["event"] != "step"]
    timed = ("seconds", "cpu_seconds", "data_seconds")
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


@pytest.fixture(scope="module")
def whole(config, corpus, tmp_path_factory):
    """An uninterrupted run, by the name of its changes."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def trained(name="none"):
        changed = replace(config, **CHANGES[name])
        with closing(open_session(changed, corpus, folder / name)) as session:
            assert session.go().reason is Reason.FINISHED
        return folder / name

    return trained


@pytest.fixture
def copied(whole, tmp_path):
    """A finished run to be changed."""
    return shutil.copytree(whole(), tmp_path / "copied")


@pytest.fixture
def endless(config):
    return replace(config, train=replace(config.train, epochs=10**6), finetune=None)


def epochs(folder):
    return [line for line in metrics(folder) if line["event"] == "epoch"]


def test_a_run_writes_what_it_promises(whole, config, corpus):
    names = {path.name for path in whole().iterdir()}
    files = {"config.json", "model.safetensors", "metrics.jsonl", "trainer.pt"}
    assert names == files | {"vocabulary.json", "token_counts.json"}
    lines = epochs(whole())
    assert [line["epoch"] for line in lines] == [1, 2, 3, 1, 2]
    assert [line["is_averaging"] for line in lines] == [False, True, True, True, True]
    model, vocabulary = load(whole())
    assert vocabulary == corpus.vocabulary and not model.training
    found = evaluate(model, corpus.split("valid"), config.valid_batch_size)
    assert found.nats == pytest.approx(min(line["valid_loss"] for line in lines), rel=1e-6)


def test_progress_after_an_epoch_is_of_the_whole_epoch(config, corpus, tmp_path):
    shown = []
    outcome = open_session(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    ends = [after for before, after in pairwise(shown) if after.valid_loss != before.valid_loss]
    lines = epochs(tmp_path / "run")
    assert [(p.epoch, p.train_loss, p.valid_loss) for p in ends] == [
        (line["epoch"], line["train_loss"], line["valid_loss"]) for line in lines
    ]
    assert outcome.best_valid_loss == min(line["valid_loss"] for line in lines)
    # The first window of a session is slow; its speed means nothing.
    assert shown[0].tokens_per_second is None
    assert all(progress.tokens_per_second > 0 for progress in shown[1:])


def test_a_run_resumed_in_validation_shows_the_epoch_that_it_ended(config, corpus, tmp_path):
    run = open_session(config, corpus, tmp_path / "run")
    while not run.batches.is_epoch_over:
        run._step(run.progress)
    run.save()
    run.close()
    shown = []
    open_session(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    first = metrics(tmp_path / "run")[0]
    assert shown[0].tokens_per_second is None and shown[0].epoch == 1
    assert (shown[0].train_loss, shown[0].valid_loss) == (first["train_loss"], first["valid_loss"])


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ("none", 1),
        ("none", 15),
        ("none", 80),
        ("none", 150),
        ("bfloat16", 33),
        ("often", 5),
        ("blocks", 14),
        ("transformer", 14),
        ("gated-cnn", 14),
    ],
)
def test_a_run_interrupted_and_resumed_is_the_uninterrupted_one(
    changes, step, whole, config, corpus, tmp_path
):
    config = replace(config, **CHANGES[changes])
    torch.rand(17)
    cut = open_session(config, corpus, tmp_path, on_progress=interrupt_at(step))
    assert cut.go().reason is Reason.INTERRUPTED
    cut.close()
    assert open_session(config, corpus, tmp_path).go().reason is Reason.FINISHED
    assert_same(tmp_path, whole(changes))


def test_a_run_that_pauses_and_saves_often_is_the_same_run(
    whole, config, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    for stop in (7, 40, None):
        with closing(open_session(config, corpus, tmp_path / "parts")) as run:
            pause = partial(lambda run, stop: run.trainer.num_steps == stop, run, stop)
            reason = run.go(pause_when=pause).reason
            assert reason is (Reason.FINISHED if stop is None else Reason.PAUSED)
            assert stop in (None, run.trainer.num_steps) and run.clock.cpu_seconds > 0
        torch.rand(5)
    assert_same(whole(), tmp_path / "parts")


def test_validating_more_often_changes_nothing_but_the_log(whole, config):
    seldom, often = whole("short"), whole("often")
    states = [torch.load(run / "trainer.pt", weights_only=True) for run in (seldom, often)]
    for name, tensor in states[0]["trainer"]["model"].items():
        assert torch.equal(tensor, states[1]["trainer"]["model"][name]), name
    assert states[0]["schedule"] == states[1]["schedule"]
    lines = epochs(often)
    assert len(lines) > len(epochs(seldom)) and all(line in lines for line in epochs(seldom))
    gaps = [b["tokens"] - a["tokens"] for a, b in pairwise(lines)]
    assert max(gaps) < 100 + config.batch.batch_size * 40


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


def test_a_limit_at_the_end_of_an_epoch_is_validated_once(config, corpus, tmp_path):
    config = replace(config, batch=BatchConfig(kind="blocks", batch_size=5, options={"length": 20}))
    run = open_session(config, corpus, tmp_path / "epoch")
    run.go(pause_when=lambda: run.schedule.epoch == 2)
    steps = next(line["step"] for line in run.log.read() if line["event"] == "epoch")
    limited = replace(config, train=replace(config.train, steps=steps), finetune=None)
    run = open_session(limited, corpus, tmp_path / "limit")
    run.go()
    lines = [line for line in run.log.read() if line["event"] == "epoch"]
    assert [(line["step"], line["epoch"]) for line in lines] == [(steps, 1)]


@pytest.mark.parametrize("damage", ["", "zeros", None])
def test_a_finished_run_has_nothing_left_to_do_but_to_restore_its_log(
    damage, copied, config, corpus
):
    path = copied / "metrics.jsonl"
    before = path.read_text()
    path.unlink() if damage is None else path.write_text(damage and "\0" * len(before))
    assert open_session(config, corpus, copied).go().reason is Reason.FINISHED
    assert path.read_text() == before


def test_a_budget_ends_the_run_with_everything_saved(endless, corpus, tmp_path):
    shown = []
    with closing(
        open_session(endless, corpus, tmp_path, budget=1.0, on_progress=shown.append)
    ) as run:
        outcome = run.go()
    assert outcome.reason is Reason.OUT_OF_TIME and outcome.seconds < 60
    fractions = [progress.fraction for progress in shown]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert load(tmp_path)[0].head.num_components == 3
    before = metrics(tmp_path)
    for budget in (1.0, 2.0):
        with closing(open_session(endless, corpus, tmp_path, budget=budget)) as run:
            assert run.go().reason is Reason.OUT_OF_TIME
        assert metrics(tmp_path)[: len(before)] == before
        assert (len(metrics(tmp_path)) > len(before)) == (budget == 2.0)


def test_a_run_whose_valid_grows_worse_ends_before_its_time(endless, corpus, tmp_path):
    stage = replace(endless.train, stop_after=1)
    run = open_session(replace(endless, train=stage), corpus, tmp_path, budget=1000.0)
    run.go(pause_when=lambda: run.schedule.epoch == 2)
    run.schedule.history = [0.1, 0.2]
    assert run.go().reason is Reason.NO_BETTER and run.schedule.epoch == 3
    run.close()
    assert open_session(run.config, corpus, tmp_path).go().reason is Reason.NO_BETTER


def test_saving_takes_of_the_budget(endless, corpus, tmp_path, monkeypatch):
    # Ten seconds pass between two looks at this clock, whatever training takes.
    monkeypatch.setattr(session.time, "perf_counter", itertools.count(0, 10).__next__)
    run = open_session(endless, corpus, tmp_path / "run", budget=60.0)
    assert run.go().reason is Reason.OUT_OF_TIME and run.trainer.num_steps <= 6


def test_a_resumed_run_keeps_its_budget(endless, corpus, tmp_path):
    folder = tmp_path / "run"
    open_session(endless, corpus, folder, budget=60.0, on_progress=interrupt_at(20)).go()
    assert open_session(endless, corpus, folder).clock.budget == 60.0
    # A run that its budget ended does not continue because the end was quick.
    run = open_session(endless, corpus, folder, budget=1000.0)
    run.clock.add_validation(999.0)
    assert run.go().reason is Reason.OUT_OF_TIME and run.clock.seconds < 1000.0
    run.close()
    before = metrics(folder)
    assert open_session(endless, corpus, folder).go().reason is Reason.OUT_OF_TIME
    assert metrics(folder) == before
