"""Adaptive heads in a run: trained, resumed, loaded, evaluated, sampled from, audited."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.build import build_model
from highrank.config import HeadConfig
from highrank.evaluation.static import evaluate
from highrank.evaluation.surprisal import surprisals
from highrank.generation import generate
from highrank.predictor import LanguageModelPredictor
from highrank.run.configuration import read_config
from highrank.run.loading import load
from highrank.studies.audit.layer import layer_of
from highrank.training.session import open_session

HEADS = {
    "adaptive-softmax, narrow": {"frequent": 6, "cutoffs": (12,), "div_value": 2.0},
    "adaptive-mos": {"frequent": 6, "start_noise": 0.2},
}


@pytest.fixture(params=HEADS)
def run_config(request, config):
    kind = request.param.split(",")[0]
    head = HeadConfig(kind=kind, num_components=3, dropout=0.1, options=HEADS[request.param])
    return replace(config, head=head)


def test_a_run_is_trained_and_its_files_are_enough_for_everything(run_config, corpus, tmp_path):
    folder = tmp_path / "run"
    outcome = open_session(run_config, corpus, folder).go()
    assert read_config(folder) == run_config
    model, vocabulary = load(folder)
    counts = torch.tensor(json.loads((folder / "token_counts.json").read_text()))
    assert (counts[model.head.order].diff() <= 0).all()
    loss = evaluate(model, corpus.split("valid"), run_config.valid_batch_size).nats
    assert loss == pytest.approx(outcome.best_valid_loss, rel=1e-5) and loss < np.log(20)
    assert len(generate(model, vocabulary, num_tokens=5)[0]) == 5
    met = list(surprisals(model, vocabulary, ["w3", "w5"]))
    assert all(0 < one.probability < 1 and one.component is None for one in met)


def test_a_run_interrupted_and_resumed_is_the_uninterrupted_one(run_config, corpus, tmp_path):
    def interrupt(shown):
        if shown.step == 30:
            signal.raise_signal(signal.SIGINT)

    open_session(run_config, corpus, tmp_path / "whole").go()
    outcome = open_session(run_config, corpus, tmp_path / "parts", on_progress=interrupt).go()
    assert outcome.reason == "interrupted"
    open_session(run_config, corpus, tmp_path / "parts").go()
    whole, parts = (load(tmp_path / name)[0].state_dict() for name in ("whole", "parts"))
    torch.testing.assert_close(parts, whole, rtol=0, atol=0)


def test_an_audit_knows_its_log_probabilities_and_its_bound(run_config):
    model = build_model(run_config, 20, token_counts=list(range(20, 0, -1))).eval()
    layer = layer_of(LanguageModelPredictor(model))
    assert layer.facts.kind == run_config.head.kind and layer.facts.is_tied
    assert layer.bound.value == model.head.rank_bound
    block = next(iter(layer.log_probs(torch.randn(6, 7), torch.float64).blocks()))
    torch.testing.assert_close(block.exp().sum(1), torch.ones(6).double())


def test_narrow_bands_need_fewer_parameters_and_tie_those_of_the_input(config):
    options = {"frequent": 6, "cutoffs": (12,), "div_value": 2.0}
    head = HeadConfig(kind="adaptive-softmax", options=options)
    tied = build_model(replace(config, head=head), 20)
    assert [tuple(band.shape) for band in tied.backbone.embedding.bands] == [(6, 6), (6, 3), (8, 1)]
    untied = replace(config, head=head, model=replace(config.model, tied=False))
    assert isinstance(build_model(untied, 20).backbone.embedding, torch.nn.Embedding)
