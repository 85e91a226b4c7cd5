"""A finished run: evaluated once, and noted at the end of its log."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pydoc_data.topics import topics

import numpy as np
import pytest
import scipy.stats

from highrank import presets
from highrank.config import with_options
from highrank.data.corpus import MemoryCorpus
from highrank.data.vocabulary import Vocabulary
from highrank.evaluation.static import Evaluation, evaluate
from highrank.report.training import training_summary
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


@pytest.fixture(scope="module")
def english():
    """The letters of Python's own manual."""
    text = "".join(topics[name] for name in sorted(topics))[:40_000]
    vocabulary = Vocabulary(("<eos>", *sorted(set(text))))
    ids = np.array(vocabulary.encode(text))
    return MemoryCorpus(vocabulary, {"train": ids[2000:], "valid": ids[:2000]})


@pytest.mark.parametrize(("tied", "start_bias"), [(False, "zeros"), (True, "unigram")])
def test_a_model_learns_more_of_a_text_than_its_frequencies(tied, start_bias, english, tmp_path):
    config = presets.get("small-mos")
    config = replace(
        config,
        model=replace(with_options(config.model, hidden_sizes=(64, 64)), tied=tied),
        head=replace(config.head, start_bias=start_bias),
        batch=replace(config.batch, batch_size=8),
        train=replace(config.train, epochs=3),
    )
    run = open_session(config, english, tmp_path / "run")
    before = evaluate(run.model, english.split("valid"), config.valid_batch_size).nats
    result = finish(run, None, run.go())
    train, valid = (
        np.bincount(english.split(name), minlength=len(english.vocabulary))
        for name in ("train", "valid")
    )
    cross_entropy = scipy.stats.entropy(valid, train + 1) + scipy.stats.entropy(valid)
    assert result.unigram == pytest.approx(cross_entropy)
    assert (before < result.unigram + 0.3) == (start_bias == "unigram")
    assert result.valid.nats < result.unigram - 0.2 and not result.is_unigram
    assert "learned little else" not in training_summary(result, config)
    nothing = replace(result, valid=Evaluation(result.unigram, 10))
    summary = training_summary(nothing, config)
    assert nothing.is_unigram and "learned little else" in summary
    assert ("start-bias" in summary) == (start_bias == "zeros")
