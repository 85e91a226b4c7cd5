"""Runs with an n-gram: what is counted, left out, kept in the folder, resumed and exported."""

import shutil
from dataclasses import replace

import pytest
import torch

from highrank.build import build_batches
from highrank.config import BatchConfig, HeadConfig, StageConfig
from highrank.evaluation.dynamic import gradient_statistics
from highrank.evaluation.static import evaluate
from highrank.heads.components.ngram import NGramComponent
from highrank.run.loading import load
from highrank.training.session import open_session

STAGE = StageConfig(optimizer="adamw", lr=1e-2, epochs=1, clip=1.0)
BATCHES = {
    "streams": {},
    "micro-batches": {"batch": BatchConfig(batch_size=4, micro_batch_size=3)},
    "blocks": {"batch": BatchConfig(kind="blocks", batch_size=7, options={"length": 20})},
}


@pytest.fixture
def counted(config):
    head = HeadConfig(
        kind="adaptive-softmax+pointer+ngram",
        num_components=1,
        options={"frequent": 10, "num_states": 10, "key_size": 3, "ngram_order": 3},
    )
    return replace(config, head=head, train=STAGE, finetune=None)


@pytest.fixture
def positions(monkeypatch):
    """Tokens and positions that the component was given since."""
    seen, inputs = [], NGramComponent.inputs

    def watch(self, hidden, tokens, state, position=None):
        seen.append((tokens, position))
        return inputs(self, hidden, tokens, state, position)

    monkeypatch.setattr(NGramComponent, "inputs", watch)
    return seen


@pytest.mark.parametrize("name", BATCHES)
def test_training_knows_its_positions_and_evaluation_has_none(
    name, counted, corpus, tmp_path, positions
):
    run = open_session(replace(counted, **BATCHES[name]), corpus, tmp_path / "run")
    train = torch.from_numpy(corpus.split("train").astype(int))
    batch = next(run.batches)
    run.trainer.step(batch)
    assert positions and all(torch.equal(train[p], t) for t, p in positions)
    positions.clear()
    run.validate()
    assert positions and all(p is None for _, p in positions)
    positions.clear()
    evaluate(run.model, corpus.split("train")[:200], 3, is_training_split=True)
    assert len(positions) > 0 and all(torch.equal(train[p], t) for t, p in positions)
    run.close()


def test_gradient_statistics_leave_out_what_they_read(counted, corpus, tmp_path, positions):
    run = open_session(counted, corpus, tmp_path / "run")
    train = torch.from_numpy(corpus.split("train").astype(int))
    gradient_statistics(run.model, corpus.split("train"), batch_size=50)
    assert positions and all(torch.equal(train[p], t) for t, p in positions)
    run.close()


def test_a_resumed_run_is_the_uninterrupted_one_and_stands_alone(counted, corpus, tmp_path):
    run = open_session(counted, corpus, tmp_path / "whole")
    run.go()
    assert run.clock.cpu_seconds > 0
    tokens = torch.from_numpy(corpus.split("test")[:20].astype(int))[:, None]
    with run.best_model() as model:
        want = model(tokens[:-1], tokens[1:], model.initial_state(1)).output
    run.close()
    run = open_session(counted, corpus, tmp_path / "cut")
    run.go(pause_when=lambda: run.trainer.num_steps == 7)
    run.close()
    run = open_session(counted, corpus, tmp_path / "cut")
    assert run.trainer.num_steps == 7
    run.go()
    run.close()
    shutil.move(tmp_path / "cut", tmp_path / "moved")
    model = load(tmp_path / "moved")[0]
    got = model(tokens[:-1], tokens[1:], model.initial_state(1)).output
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    shutil.rmtree(tmp_path / "moved" / "ngram")
    with pytest.raises(ValueError, match=r"ngram/ngram.json could not be read"):
        load(tmp_path / "moved")


def test_without_the_token_itself_its_loss_is_higher(counted, corpus, tmp_path):
    """What a gate would trust that had learned from counts of the same text."""
    run = open_session(counted, corpus, tmp_path / "run")
    batch = next(build_batches(counted, corpus.split("train")))
    model = run.model.eval()
    state = model.initial_state(batch.target.shape[1])
    left_out = model(batch.inputs, batch.target, state, position=batch.position).loss
    assert left_out > model(batch.inputs, batch.target, state).loss
    run.close()
