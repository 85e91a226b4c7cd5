"""TensorBoard's files hold what the log holds, read back with TensorBoard's own reader."""

import math
from dataclasses import replace

import pytest

from highrank.training.log import tensorboard_writer
from highrank.training.session import open_session


def test_perplexities_are_written_against_the_step(config, corpus, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = open_session(replace(config, finetune=None), corpus, tmp_path / "run")
    run.on_event = tensorboard_writer(run.folder, run.trainer.num_steps)
    run.go()
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    lines = [line for line in run.log.read() if line["event"] == "epoch"]
    for split in ("train", "valid"):
        found = [(point.step, point.value) for point in events.Scalars(f"perplexity/{split}")]
        expected = [(line["step"], math.exp(line[f"{split}_loss"])) for line in lines]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    steps = [line["step"] for line in run.log.read() if line["event"] == "step"]
    assert [point.step for point in events.Scalars("perplexity/train, steps")] == steps


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[track\]'"):
        tensorboard_writer(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
