"""Methods stack, reduce to static evaluation, and are found by a search on valid."""

import math

import numpy as np
import pytest

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import DynamicSettings, converted, evaluate_dynamically
from highrank.evaluation.method import Method, evaluate_by, find_method
from highrank.evaluation.search import cache_grid, dynamic_grid
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


def test_only_static_evaluation_has_a_batch_size(model):
    assert evaluate_by(Method(), model, TEXT, 4) == evaluate(model, TEXT, 4)
    with pytest.raises(ValueError, match="batch_size must be 1 for cache evaluation, got 4"):
        evaluate_by(Method(cache=CACHE), model, TEXT, 4)


def test_without_settings_the_method_is_static_and_nothing_is_tried(loaded):
    assert find_method(loaded) == Method()
    assert find_method(loaded, cache=[CACHE]) == Method(cache=CACHE)
    assert not list(loaded.folder.glob("statistics-*"))


def test_a_search_takes_the_best_on_valid_and_remembers_what_it_tried(loaded):
    ways = dynamic_grid(lr=[1e-9, 1e-2], decay=[0.01], epsilon=[1e-2])
    caches = cache_grid(window=[20], theta=[0.5], weight=[0.0, 0.3])
    method = find_method(loaded, ways, caches, is_search=True, search_tokens=33)
    learning, cache = method.searches["dynamic"], method.searches["cache"]
    assert (method.dynamic, method.cache) == (learning.best.settings, cache.best.settings)
    # Only the first tokens are predicted.
    valid = loaded.corpus.split("valid")[:34]
    want = evaluate_dynamically(loaded.model, valid, ways[1], method.statistics)
    assert (learning.trials[1].nats, learning.num_tokens) == want and cache.num_tokens == 33
    # The cache was tried on the model that learns.
    static = Method(dynamic=method.dynamic, statistics=method.statistics)
    assert cache.trials[0].nats == pytest.approx(evaluate_by(static, loaded.model, valid).nats)


def test_settings_of_another_convention_are_converted(loaded):
    theirs = DynamicSettings(lr=0.01, epsilon=0.02, decay=0.5)
    method = find_method(loaded, [theirs], convention="original")
    found = method.statistics
    sizes = {"num_batches": found.num_batches, "num_tensors": found.num_tensors}
    assert method.dynamic == converted(theirs, "original", **sizes)


def test_a_search_without_a_finite_loss_is_an_error(loaded):
    loaded.model.head.bias.data[:] = math.nan
    with pytest.raises(ValueError, match="No trial has a finite loss: try a lower lr"):
        find_method(loaded, [LEARNING], is_search=True)
