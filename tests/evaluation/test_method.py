"""Methods stack, and reduce to static evaluation."""

import numpy as np
import pytest

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.method import Method, evaluate_by
from highrank.evaluation.static import evaluate
from highrank.evaluation.statistics import gradient_statistics
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V = 11
TEXT = np.random.default_rng(0).integers(V, size=203).astype(np.uint16)
LEARNING = DynamicSettings(rule="sgd", lr=0.5, decay=0.1)
CACHE = CacheSettings(window=50, theta=0.5, weight=0.2)


@pytest.fixture
def model():
    backbone = AWDLSTM(V, 6, (8,), output_dropout=0.5, weight_dropout=0.5)
    return LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5)).double()


def test_without_learning_and_without_weight_it_is_static(model):
    want = evaluate(model, TEXT, batch_size=1)
    method = Method(
        dynamic=DynamicSettings(lr=0.0),
        statistics=gradient_statistics(model, TEXT, batch_size=4),
        cache=CacheSettings(weight=0.0),
    )
    found = evaluate_by(method, model, TEXT)
    assert found.nats == pytest.approx(want.nats, rel=1e-12)
    assert found.num_tokens == want.num_tokens


def test_each_part_changes_the_number(model):
    methods = [
        Method(dynamic=dynamic, cache=cache)
        for dynamic in (None, LEARNING)
        for cache in (None, CACHE)
    ]
    names = [method.name for method in methods]
    assert names == ["static", "cache", "dynamic", "dynamic+cache"]
    found = [evaluate_by(method, model, TEXT).nats for method in methods]
    assert len({round(nats, 9) for nats in found}) == 4


def test_settings_are_those_of_the_parts():
    assert Method().settings == {}
    settings = Method(dynamic=LEARNING, cache=CACHE).settings
    assert settings["dynamic"]["lr"] == 0.5 and settings["cache"]["window"] == 50


def test_only_static_evaluation_has_columns(model):
    assert evaluate_by(Method(), model, TEXT, 4) == evaluate(model, TEXT, 4)
    with pytest.raises(ValueError, match="batch_size must be 1 for cache evaluation, got 4"):
        evaluate_by(Method(cache=CACHE), model, TEXT, 4)
