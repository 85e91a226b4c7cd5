"""A model whose head looks back: windows, micro-batches, resumed runs, generation."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from highrank.build import build_model
from highrank.config import HeadConfig, StageConfig
from highrank.data.batches import TextStreams
from highrank.data.vocabulary import Vocabulary
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import (
    DynamicSettings,
    evaluate_dynamically,
    gradient_statistics,
)
from highrank.evaluation.static import evaluate, score, summed
from highrank.generation import generate
from highrank.heads import Composed, MixtureOfSoftmaxes, Pointer
from highrank.heads.bases.component import components_of
from highrank.heads.components.ngram import NGramComponent
from highrank.models import AWDLSTM, LanguageModel
from highrank.models.weights import load_state
from highrank.run.loading import load
from highrank.training.outcome import Reason
from highrank.training.session import open_session
from highrank.training.trainer import Trainer

V, B, T = 13, 4, 5
TOKENS = np.random.default_rng(0).integers(V, size=400)


def build(num_components=2, dropout=0.0):
    torch.manual_seed(1)
    rates = {"output_dropout": dropout, "weight_dropout": dropout}
    softmaxes = MixtureOfSoftmaxes(7, V, num_components, 6, dropout=dropout)
    ngram = NGramComponent(7, V, ngram_order=3)
    head = Composed(softmaxes, [Pointer(7, V, num_states=8, key_size=5), ngram])
    model = LanguageModel(AWDLSTM(V, 6, (9, 7), **rates), head)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    ngram.fit(TOKENS, ())
    return model.double()


@pytest.mark.parametrize("window", [1, 7, 30, 1000])
def test_the_evaluation_window_does_not_change_the_number(window):
    model = build(dropout=0.3)
    want = evaluate(model, TOKENS, batch_size=3, window=16).nats
    assert evaluate(model, TOKENS, batch_size=3, window=window).nats == pytest.approx(want, 1e-10)
    one = evaluate(model, TOKENS, batch_size=1).nats
    assert summed(score(model, TOKENS, window)).nats == pytest.approx(one, 1e-10)


def test_micro_batches_are_the_batch_and_a_resumed_trainer_is_the_same():
    def trained(micro_batch_size):
        batches = TextStreams(TOKENS, B, bptt=T, bptt_std=0.0)
        trainer = Trainer(build(), StageConfig(lr=1.0), micro_batch_size=micro_batch_size)
        for _ in range(4):
            trainer.step(next(batches))
        return trainer, batches

    whole, _ = trained(None)
    parts, batches = trained(3)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    again = Trainer(build(), StageConfig(lr=1.0), micro_batch_size=3)
    again.load_state_dict(parts.state_dict())
    batch = next(batches)
    parts.step(batch)
    again.step(batch)
    for one, other in zip(parts.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def pointing(config):
    options = {"num_states": 30, "key_size": 4}
    return replace(
        config, head=HeadConfig(kind="mos+pointer+ngram", num_components=2, options=options)
    )


def interrupt_at(step):
    def show(progress):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return show


def test_a_run_interrupted_and_resumed_is_the_uninterrupted_one(pointing, corpus, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    open_session(pointing, corpus, one).go()
    first = open_session(pointing, corpus, two, on_progress=interrupt_at(40))
    assert first.go().reason is Reason.INTERRUPTED
    del first
    assert open_session(pointing, corpus, two).go().reason is Reason.FINISHED
    before, after = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert before.keys() == after.keys()
    assert "head.softmaxes.weight" not in before
    for name in before:
        assert torch.equal(before[name], after[name]), name


def test_what_is_saved_and_loaded_predicts_the_same(pointing, corpus, tmp_path):
    run = open_session(pointing, corpus, tmp_path / "run")
    run.go()
    model, _ = load(tmp_path / "run")
    best, test = build_model(pointing, len(corpus.vocabulary)), corpus.split("test")
    load_state(best, run.best_state)
    for component in components_of(best):
        component.load_data(tmp_path / "run")
    assert evaluate(model, test).nats == evaluate(best, test).nats


def test_generation_follows_the_probabilities_of_one_long_window():
    """Greedy tokens, drawn one by one with a remembered state, are those of one forward pass."""
    model = build().eval()
    vocabulary = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, V))))
    prompt = [f"w{i}" for i in (3, 5, 3, 7, 2, 3)]
    (sample,) = generate(model, vocabulary, prompt, num_tokens=20, temperature=0.0)
    ids = torch.from_numpy(vocabulary.encode(["<eos>", *prompt, *sample]))[:, None]
    read = model.read(ids, model.initial_state(1))
    predicted = model.head.predict(read.hidden, **read.past)[:, 0]
    assert torch.equal(predicted[len(prompt) : -1], ids[len(prompt) + 1 :, 0])


def test_dynamic_evaluation_without_a_step_is_static():
    model = build().eval()
    statistics = gradient_statistics(model, TOKENS[:100], batch_size=2)
    settings = DynamicSettings(lr=0.0, decay=0.0)
    found = evaluate_dynamically(model, TOKENS, settings, statistics).nats
    assert found == pytest.approx(evaluate(model, TOKENS, batch_size=1).nats, 1e-9)


def test_a_cache_of_weight_0_is_static():
    model = build().eval()
    found = summed(with_cache(score(model, TOKENS), CacheSettings(weight=0.0))).nats
    assert found == pytest.approx(evaluate(model, TOKENS, batch_size=1).nats, 1e-12)
