"""Runs: their files, their ends, and that a resumed one is the uninterrupted one."""

import json
import os
import resource
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from highrank.build import load
from highrank.config import StageConfig
from highrank.data.vocabulary import Vocabulary
from highrank.training import loop
from highrank.training.checkpoint import save_model
from highrank.training.loop import Run
from highrank.training.trainer import Diverged


def weights(folder):
    return load_file(folder / "model.safetensors")


def metrics(folder):
    """Without what depends on the clock."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def assert_same(one, two):
    assert metrics(one) == metrics(two)
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
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
    outcome = Run(config, corpus, tmp_path / "run").go()
    assert outcome.reason == "finished"
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "vocabulary.json", "model.safetensors", "metrics.jsonl", "trainer.pt"}
    assert names == files
    model, vocabulary = load(tmp_path / "run")
    assert vocabulary == corpus.vocabulary and not model.training
    lines = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 1, 2]
    assert [line["is_averaging"] for line in lines] == [False, True, True, True, True]
    assert outcome.best_valid_loss == min(line["valid_loss"] for line in lines)


def test_progress_after_an_epoch_is_of_the_whole_epoch(config, corpus, tmp_path):
    shown = []
    Run(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    ends = [
        after
        for before, after in zip(shown, shown[1:], strict=False)
        if after.valid_loss != before.valid_loss
    ]
    lines = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert [(p.epoch, p.train_loss, p.valid_loss) for p in ends] == [
        (line["epoch"], line["train_loss"], line["valid_loss"]) for line in lines
    ]
    # The first window of a sitting is slow; its speed would say nothing.
    assert shown[0].tokens_per_second is None
    assert all(progress.tokens_per_second > 0 for progress in shown[1:])


def test_a_run_resumed_in_validation_shows_the_epoch_that_it_ended(config, corpus, tmp_path):
    run = Run(config, corpus, tmp_path / "run")
    while not run.trainer.is_epoch_over:
        run._train_window()
    run.save()
    del run  # it holds the folder
    shown = []
    Run(config, corpus, tmp_path / "run", on_progress=shown.append).go()
    first = metrics(tmp_path / "run")[0]
    assert shown[0].tokens_per_second is None and shown[0].epoch == 1
    assert (shown[0].train_loss, shown[0].valid_loss) == (first["train_loss"], first["valid_loss"])


def test_the_saved_model_has_the_validation_loss_that_was_written(config, corpus, tmp_path):
    from highrank.evaluation.static import evaluate

    outcome = Run(config, corpus, tmp_path / "run").go()
    model, _ = load(tmp_path / "run")
    found = evaluate(model, corpus.split("valid"), config.valid_columns)
    assert found.nats == pytest.approx(outcome.best_valid_loss, rel=1e-6)


@pytest.mark.parametrize(
    ("grow_at", "precision"), [(None, "float32"), (0.5, "float32"), (2, "float32"), (2, "bfloat16")]
)
@pytest.mark.parametrize("step", [1, 15, 33, 80, 150])
def test_a_run_interrupted_and_resumed_is_the_uninterrupted_one(
    step, grow_at, precision, config, corpus, tmp_path
):
    config = replace(config, head=replace(config.head, grow_at=grow_at), precision=precision)
    Run(config, corpus, tmp_path / "whole").go()
    torch.rand(17)
    folder = tmp_path / "parts"
    assert Run(config, corpus, folder, on_progress=interrupt_at(step)).go().reason == "interrupted"
    assert Run(config, corpus, folder).go().reason == "finished"
    assert_same(folder, tmp_path / "whole")


def test_a_finished_run_has_nothing_left_to_do(config, corpus, tmp_path):
    Run(config, corpus, tmp_path / "run").go()
    before = metrics(tmp_path / "run")
    assert Run(config, corpus, tmp_path / "run").go().reason == "finished"
    assert metrics(tmp_path / "run") == before


def test_a_budget_ends_the_run_with_everything_saved(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    outcome = Run(endless, corpus, tmp_path / "run", budget=2.0).go()
    assert outcome.reason == "out of time" and outcome.seconds < 2.5
    assert load(tmp_path / "run")[0].head.num_components == 3


def test_a_run_that_is_out_of_time_stays_so(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    Run(endless, corpus, tmp_path / "run", budget=1.0).go()
    before = metrics(tmp_path / "run")
    assert Run(endless, corpus, tmp_path / "run", budget=1.0).go().reason == "out of time"
    assert metrics(tmp_path / "run") == before
    assert Run(endless, corpus, tmp_path / "run", budget=2.0).go().reason == "out of time"
    assert metrics(tmp_path / "run")[: len(before)] == before
    assert len(metrics(tmp_path / "run")) > len(before)


def test_a_run_that_goes_on_keeps_its_budget(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    folder = tmp_path / "run"
    Run(endless, corpus, folder, budget=60.0, on_progress=interrupt_at(20)).go()
    assert Run(endless, corpus, folder).budget == 60.0
    assert Run(endless, corpus, folder, budget=1.0).go().reason == "out of time"
    before = metrics(folder)
    assert Run(endless, corpus, folder).go().reason == "out of time"
    assert metrics(folder) == before


def test_a_share_of_the_time_is_of_the_time_before_the_last_validation(config, corpus, tmp_path):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    grows = replace(endless, head=replace(config.head, grow_at=0.95))
    run = Run(grows, corpus, tmp_path / "run", budget=10.0)
    run.validation_seconds, run.seconds = 4.0, 5.4
    assert run.share == pytest.approx(0.9) and not run._is_out_of_time()
    run._train_window()
    assert run.trainer.model.head.num_components == 1
    run.seconds = 5.9
    run._train_window()
    assert run.trainer.model.head.num_components == 3
    # How long the last validation will take is not known until this head was timed.
    assert run._speed is None and run._reserve == 4.0
    run._train_window()
    assert run._reserve == max(4.0, len(run.valid) / run._speed)
    run.timed_windows.append((1, 100.0))
    assert run._reserve == len(run.valid) / run._speed > 4.0
    run.validated_components, run.seconds = 3, 6.0
    assert run.share == 1 and run._is_out_of_time()


def test_a_run_that_its_budget_ended_does_not_go_on_because_the_end_was_quick(
    config, corpus, tmp_path
):
    endless = replace(config, train=replace(config.train, epochs=10**6), finetune=None)
    run = Run(endless, corpus, tmp_path / "run", budget=10.0)
    run.validation_seconds, run.validated_components, run.seconds = 9.0, 3, 1.0
    assert run.go().reason == "out of time" and run.seconds + run.validation_seconds < 10.0
    del run  # it holds the folder
    before = metrics(tmp_path / "run")
    assert Run(endless, corpus, tmp_path / "run").go().reason == "out of time"
    assert metrics(tmp_path / "run") == before


def test_a_head_grows_when_the_epoch_begins(config, corpus, tmp_path):
    config = replace(config, head=replace(config.head, grow_at=2), finetune=None)
    Run(config, corpus, tmp_path / "run").go()
    lines = metrics(tmp_path / "run")
    assert [(line["event"], line["num_components"]) for line in lines] == [
        ("epoch", 1),
        ("grow", 3),
        ("epoch", 3),
        ("epoch", 3),
    ]
    assert all(lines[1][name] == lines[0][name] for name in ("step", "tokens"))


def test_the_best_model_of_a_head_that_grows_is_a_mixture(config, corpus, tmp_path):
    """Even if the single softmax before it was better on valid."""
    stage = replace(config.train, lr=1e-9, epochs=2, switch_epoch=None)
    config = replace(config, train=stage, finetune=None, head=replace(config.head, grow_at=2))
    run = Run(config, corpus, tmp_path / "run")
    run.trainer.best = 0.0
    run.go()
    assert load(tmp_path / "run")[0].head.num_components == 3


def test_a_folder_of_another_configuration_is_refused(config, corpus, tmp_path):
    once = replace(config, finetune=None, train=replace(config.train, epochs=1))
    Run(once, corpus, tmp_path / "run").go()
    other = replace(once, train=replace(once.train, epochs=2))
    with pytest.raises(ValueError, match="same configuration.*train.epochs 1, not 2: choose"):
        Run(other, corpus, tmp_path / "run")


def test_a_run_keeps_its_vocabulary(config, corpus, tmp_path):
    config = replace(config, finetune=None, train=StageConfig(epochs=1))
    Run(config, corpus, tmp_path / "run").go()
    before = (tmp_path / "run" / "vocabulary.json").read_bytes()
    words = tuple(corpus.vocabulary.words)
    other = SimpleNamespace(vocabulary=Vocabulary((*words[:-1], "other")), split=corpus.split)
    with pytest.raises(ValueError, match="the corpus must have the run's vocabulary"):
        Run(config, other, tmp_path / "run")
    assert (tmp_path / "run" / "vocabulary.json").read_bytes() == before


def test_a_folder_with_other_files_is_refused(config, corpus, tmp_path):
    (tmp_path / "thesis.tex").write_text("all my work")
    with pytest.raises(ValueError, match="folder must be empty"):
        Run(config, corpus, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "all my work"


def test_divergence_stops_with_the_step_and_the_last_good_checkpoint(config, corpus, tmp_path):
    wild = replace(config, train=replace(config.train, lr=1e38, clip=1e38))
    with pytest.raises(Diverged, match=r"diverged at step \d+ .*trainer\.pt") as caught:
        Run(wild, corpus, tmp_path / "run").go()
    assert caught.value.advice.endswith("--train.lr 3.3e+37")
    state = torch.load(tmp_path / "run" / "trainer.pt", weights_only=True)["trainer"]
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


@pytest.mark.parametrize("stage", ["train", "finetune"])
def test_weights_that_validation_finds_broken_are_not_saved(stage, config, corpus, tmp_path):
    """One window makes an epoch: the gradient was fine, the step was not."""
    batch = replace(config.batch, window=400, window_deviation=0, window_extra=0)
    broken = replace(getattr(config, stage), lr=1e38, clip=1e38)
    wild = replace(config, batch=batch, **{stage: broken})
    with pytest.raises(Diverged, match=r"on valid is (nan|inf).*trainer\.pt") as caught:
        Run(wild, corpus, tmp_path / "run").go()
    assert f"--{stage}.lr" in caught.value.advice
    state = torch.load(tmp_path / "run" / "trainer.pt", weights_only=True)["trainer"]
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_another_text_with_the_same_vocabulary_is_refused(config, corpus, tmp_path):
    config = replace(config, finetune=None, train=StageConfig(epochs=1))
    Run(config, corpus, tmp_path / "run").go()
    texts = {name: corpus.split(name) for name in ("train", "valid", "test")}
    texts["train"] = texts["train"][::-1].copy()
    other = SimpleNamespace(vocabulary=corpus.vocabulary, split=texts.__getitem__)
    with pytest.raises(ValueError, match="the one that the run began with, got another train text"):
        Run(config, other, tmp_path / "run")


def test_a_full_disk_is_named_and_the_last_checkpoint_kept(config, corpus, tmp_path):
    run = Run(config, corpus, tmp_path / "run")
    run.save()
    before = run.checkpoint_path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        for save in (run.save, lambda: save_model(tmp_path / "model", run.trainer.best_state)):
            with pytest.raises(OSError, match=r"when there is room .* --resume"):
                save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert run.checkpoint_path.read_bytes() == before
    assert not list(tmp_path.rglob(".*.new"))


def test_growth_keeps_the_loss_and_the_state_of_the_optimiser(config, corpus, tmp_path):
    stage = StageConfig(optimizer="adamw", lr=0.01, epochs=2, clip=1.0)
    config = replace(
        config, train=stage, finetune=None, head=replace(config.head, grow_at=0.5, num_components=5)
    )
    run = Run(config, corpus, tmp_path / "run")
    trainer = run.trainer
    while trainer.epoch_share < 0.45:
        trainer.train_window(trainer.epoch_share)
    embedding = trainer.model.head.weight
    before, moments = (
        trainer.validate(corpus.split("valid")).nats,
        trainer.optimizer.state[embedding],
    )
    trainer._grow()
    assert trainer.model.head.num_components == 5
    assert trainer.validate(corpus.split("valid")).nats == pytest.approx(before, rel=1e-3)
    assert trainer.optimizer.state[embedding] is moments
    trainer.train_window(0.6)
    assert len(trainer.optimizer.state) == len(list(trainer.model.parameters()))


def test_checkpoints_come_by_the_clock_too_and_change_nothing(
    config, corpus, tmp_path, monkeypatch
):
    Run(config, corpus, tmp_path / "rare").go()
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    Run(config, corpus, tmp_path / "often").go()
    assert_same(tmp_path / "rare", tmp_path / "often")
