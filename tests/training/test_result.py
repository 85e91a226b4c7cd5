"""A finished run: evaluated once, and noted at the end of its log."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from highrank.evaluation.static import evaluate
from highrank.run.loading import load
from highrank.training.result import finish
from highrank.training.session import open_session


@pytest.fixture
def finished(corpus, config, tmp_path):
    run = open_session(
        replace(config, train=replace(config.train, epochs=1)), corpus, tmp_path / "run"
    )
    return run, run.go()


def test_the_best_model_is_evaluated_on_test(finished, corpus):
    run, outcome = finished
    titles = []
    test, bar = corpus.split("test"), lambda title: titles.append(title) or nullcontext()
    result = finish(run, test, outcome, bar)
    model, _ = load(run.folder)
    assert result.test == evaluate(model, test, 1)
    assert result.valid.nats == outcome.best_valid_loss and titles == ["Evaluating on test"]
    found = json.loads(json.dumps(result.as_json()))
    assert found["reason"] == "finished" and found["run"] == str(run.folder)
    assert found["test"]["perplexity"] == result.test.perplexity
    assert found["num_parameters"] == sum(p.numel() for p in model.parameters())


def test_the_end_is_noted_once(finished, corpus):
    run, outcome = finished
    first, second = (finish(run, corpus.split("test"), outcome) for _ in range(2))
    assert first == second
    assert [line["event"] for line in run.log.read()].count("end") == 1
