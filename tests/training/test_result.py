"""A finished run: evaluated once, and noted at the end of its log."""

import json
from contextlib import nullcontext
from dataclasses import replace

from highrank.evaluation.static import evaluate
from highrank.run.loading import load
from highrank.training.result import finish
from highrank.training.session import open_session


def test_the_best_model_is_evaluated_on_test_and_the_end_noted_once(config, corpus, tmp_path):
    config = replace(config, finetune=None, train=replace(config.train, epochs=1))
    run, titles, test = open_session(config, corpus, tmp_path / "run"), [], corpus.split("test")
    outcome = run.go()
    result = finish(run, test, outcome, lambda title: titles.append(title) or nullcontext())
    model, _ = load(run.folder)
    assert result.test == evaluate(model, test, 1)
    assert result.valid.nats == outcome.best_valid_loss and titles == ["Evaluating on test"]
    found = json.loads(json.dumps(result.as_json()))
    assert found["reason"] == "finished" and found["run"] == str(run.folder)
    assert found["test"]["perplexity"] == result.test.perplexity
    assert found["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert finish(run, test, outcome) == result
    assert [line["event"] for line in run.log.read()].count("end") == 1
