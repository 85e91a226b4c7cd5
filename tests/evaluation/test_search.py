"""Methods stack and reduce to static evaluation; each trial is the evaluation it stands for."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.evaluation.cache import Block, CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, converted, evaluate_dynamically
from highrank.evaluation.grids import cache_grid, dynamic_grid, widened
from highrank.evaluation.search import (
    Method,
    Search,
    Trial,
    evaluate_by,
    find_method,
    search_cache,
    search_dynamic,
)
from highrank.evaluation.static import Output, Scored, evaluate, score, summed

LEARNING = DynamicSettings(rule="sgd", lr=0.5, decay=0.1)
CACHE = CacheSettings(window=50, theta=0.5, weight=0.2)


@pytest.fixture
def text(text):
    return text[:91]


def test_without_learning_and_without_weight_a_method_is_static(model, text, statistics):
    dynamic, cache = DynamicSettings(lr=0.0), CacheSettings(weight=0.0)
    method = Method(dynamic=dynamic, statistics=statistics, cache=cache)
    assert evaluate_by(method, model, text) == pytest.approx(evaluate(model, text, 1), rel=1e-12)


def test_each_part_changes_the_number(model, text):
    methods = [Method(dynamic=d, cache=c) for d in (None, LEARNING) for c in (None, CACHE)]
    names = [method.name for method in methods]
    assert names == ["static", "cache", "dynamic", "dynamic+cache"]
    assert len({round(evaluate_by(method, model, text).nats, 9) for method in methods}) == 4
    assert [list(method.settings) for method in methods[::3]] == [[], ["dynamic", "cache"]]
    assert methods[3].settings["dynamic"]["lr"] == 0.5


def test_only_static_evaluation_has_a_batch_size(model, text):
    assert evaluate_by(Method(), model, text, 4) == evaluate(model, text, 4)
    with pytest.raises(ValueError, match="batch_size must be 1 for cache evaluation, got 4"):
        evaluate_by(Method(cache=CACHE), model, text, 4)


def test_without_a_search_the_first_settings_are_taken_and_nothing_is_tried(loaded):
    assert find_method(loaded) == Method()
    assert find_method(loaded, cache=[CACHE]) == Method(cache=CACHE)
    assert not list(loaded.folder.glob("statistics-*"))
    theirs = DynamicSettings(lr=0.01, epsilon=0.02, decay=0.5)
    method = find_method(loaded, [theirs], convention="original")
    found = method.statistics
    sizes = {"num_batches": found.num_batches, "num_tensors": found.num_tensors}
    assert method.dynamic == converted(theirs, "original", **sizes)


def test_a_search_takes_the_best_on_valid_and_remembers_what_it_tried(loaded):
    ways = dynamic_grid(lr=[1e-9, 1e-2], decay=[0.01], epsilon=[1e-2])
    caches = cache_grid(window=[20], theta=[0.5], weight=[0.0, 0.3])
    method = find_method(loaded, ways, caches, search_tokens=33)
    learning, cache = method.searches["dynamic"], method.searches["cache"]
    assert (method.dynamic, method.cache) == (learning.best.settings, cache.best.settings)
    # Only the first tokens are predicted.
    valid = loaded.corpus.split("valid")[:34]
    want = evaluate_dynamically(loaded.model, valid, ways[2], method.statistics)
    assert (learning.trials[2].nats, learning.num_tokens) == want and cache.num_tokens == 33
    # A model that does not learn is the first.
    static = evaluate(loaded.model, valid, 1).nats
    assert ways[0].lr == 0 and learning.trials[0].nats == pytest.approx(static, rel=1e-6)
    # The cache was tried on the model that learns.
    static = Method(dynamic=method.dynamic, statistics=method.statistics)
    assert cache.trials[0].nats == pytest.approx(evaluate_by(static, loaded.model, valid).nats)


def test_a_search_without_a_finite_loss_is_an_error(loaded):
    loaded.model.head.bias.data[:] = math.nan
    with pytest.raises(ValueError, match="No trial has a finite loss: try a lower lr"):
        find_method(loaded, [LEARNING, LEARNING])


def test_a_search_goes_beyond_its_grid_as_long_as_that_is_better(loaded, monkeypatch):
    def fake(model, tokens, statistics, grid, on_progress):
        trials = (Trial(settings=one, nats=abs(one.lr - 7e-7)) for one in grid)
        return Search(trials=tuple(trials), num_tokens=9)

    monkeypatch.setattr("highrank.evaluation.search.search_dynamic", fake)
    ways = dynamic_grid(lr=[1e-7, 2e-7], decay=[0.01], epsilon=[1e-2])
    method = find_method(loaded, ways, widen=True)
    tried = [trial.settings.lr for trial in method.searches["dynamic"].trials]
    assert tried == pytest.approx([0, 1e-7, 2e-7, 4e-7, 8e-7, 1.6e-6], abs=1e-12)
    assert method.dynamic.lr == pytest.approx(8e-7)
    assert len(find_method(loaded, ways).searches["dynamic"].trials) == 3


def test_a_search_never_ends_above_static(loaded):
    ways = dynamic_grid(lr=[3.0, 4.0], decay=[0.01], epsilon=[1e-2])
    method = find_method(loaded, ways, search_tokens=33)
    valid = loaded.corpus.split("valid")[:34]
    static = evaluate(loaded.model, valid, 1)
    assert method.dynamic.lr == 0
    assert evaluate_by(method, loaded.model, valid).nats == pytest.approx(static.nats, rel=1e-6)


def test_a_grid_is_widened_where_the_best_is_at_its_edge():
    grid = cache_grid(window=(100, 500), theta=(0.1, 0.3, 1.0), weight=(0.1, 0.6))
    best = CacheSettings(window=500, theta=0.3, weight=0.6)
    assert widened(best, grid) == [CacheSettings(window=1000, theta=0.3, weight=0.6)]
    low = CacheSettings(window=100, theta=0.1, weight=0.1)
    changed = ({"window": 50}, {"theta": 0.05}, {"weight": 0.05})
    assert widened(low, grid) == [replace(low, **values) for values in changed]
    assert widened(grid[0], grid) == [] == widened(dynamic_grid()[0], dynamic_grid())


def test_every_trial_starts_from_the_trained_weights(model, text, statistics):
    grid, shown = dynamic_grid(lr=[1e-4, 1e-2], decay=[0.0, 5.0], epsilon=[1e-3]), []
    found = search_dynamic(model, text, statistics, grid, on_progress=lambda *at: shown.append(at))
    assert [trial.settings for trial in found.trials] == list(grid) and len(grid) == 5
    # The other way round: what came before a trial leaves no trace.
    for trial in reversed(found.trials[1:]):
        assert trial.nats == evaluate_dynamically(model, text, trial.settings, statistics).nats
    assert found.best.nats == min(trial.nats for trial in found.trials)
    assert len({trial.nats for trial in found.trials}) == 5 and found.num_tokens == 90
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and 0.4 in fractions
    assert "lr 0.01" in shown[-1][1] and "best so far" in shown[-1][1]


class Square(torch.nn.Module):
    """Its loss is w²: a step with a huge learning rate overflows, whatever the last bits are."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, tokens, target, state):
        loss = self.w**2
        return Output(loss, -loss.expand(target.shape), None)


def test_a_trial_that_diverges_is_the_worst(text):
    model = Square()
    grid = [DynamicSettings(rule="sgd", lr=lr, decay=0.0) for lr in (1e200, 0.1)]
    found = search_dynamic(model, text, None, grid, forward=model)
    assert found.trials[0].nats == math.inf and found.best.settings.lr == 0.1
    losses = [trial["nats"] for trial in found.as_json()["trials"]]
    assert losses[0] is None and 0 < losses[1] < 1


def test_the_default_grids_are_krauses_and_those_of_the_cache():
    grid = dynamic_grid(segment=20, epsilon=[1e-5])
    assert len(grid) == 1 + 24 and {s.epsilon for s in grid} == {1e-5} and grid[0].lr == 0
    assert grid[1].lr == pytest.approx(4e-5) and grid[-1].decay == pytest.approx(0.02)
    assert len(cache_grid()) == 1 + 3 * 7 * 6


def test_without_a_search_there_is_the_given_setting_or_a_few_with_static_among_them():
    assert [one.lr for one in dynamic_grid(is_search=False)] == [0, 1e-5, 2e-5, 5e-5]
    assert {one.decay for one in dynamic_grid(is_search=False)} == {DynamicSettings().decay}
    assert cache_grid(is_search=False) == cache_grid() and cache_grid()[0].weight == 0
    (settings,) = dynamic_grid(lr=[0.5], segment=9, rule="sgd", adapt=["head"], is_search=False)
    assert settings == DynamicSettings(lr=0.5, segment=9, rule="sgd", adapt=("head",))
    assert cache_grid(theta=[0.7], is_search=False) == (CacheSettings(theta=0.7),)


def test_the_search_of_the_cache_has_the_loss_of_each_cache(model, text, watch):
    grid = cache_grid(window=(3, 50, 20), theta=(0.0, 2.0), weight=(0.0, 0.1, 0.5))
    segments = list(score(model, text))
    with watch() as seen:
        found = search_cache(segments, grid)
    # The text is compared once, in blocks of 32 tokens.
    assert seen.num_multiplies == math.ceil(90 / 32)
    assert len(found.trials) == 1 + 3 * 2 * 2 and found.num_tokens == 90
    assert [trial.settings for trial in found.trials] == list(grid)
    for trial in found.trials:
        want = summed(with_cache(score(model, text), trial.settings)).nats
        assert trial.nats == pytest.approx(want, rel=1e-12), trial.settings
    assert found.best.nats == min(trial.nats for trial in found.trials)


def test_no_cache_is_tried_once_and_compares_nothing(model, text, monkeypatch):
    monkeypatch.setattr(Block, "log_cache", lambda *_: pytest.fail("a cache was asked"))
    grid = cache_grid(window=(3, 50), theta=(0.0, 1.0), weight=(0.0, 0.0))
    (trial,) = search_cache(score(model, text), grid).trials
    assert trial.nats == pytest.approx(summed(score(model, text)).nats, rel=1e-12)


def test_the_best_cache_of_a_text_that_repeats_itself_is_sharp():
    target, hidden = torch.from_numpy(np.random.default_rng(0).integers(11, size=12)), torch.eye(12)
    text = Scored(target.repeat(20), torch.full((240,), -math.log(11)), hidden.repeat(20, 1))
    grid = cache_grid(window=(6, 24), theta=(0.0, 10.0), weight=(0.0, 0.5, 0.9))
    best = search_cache([text], grid).best.settings
    assert (best.window, best.theta, best.weight) == (24, 10.0, 0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dynamic_grid(lr=[1.0, 2.0], is_search=False), "lr must be one value .*, got 2"),
        (lambda: dynamic_grid(rule="sgd"), "lr must be given for the rule sgd"),
        (lambda: dynamic_grid(rule="sgd", lr=[1.0], epsilon=[1.0]), "epsilon must go with the"),
        (lambda: dynamic_grid(convention="ms", lr=[1.0]), "lr, epsilon and decay must be given"),
        (lambda: search_dynamic(Square(), np.arange(9), None, []), "one setting, got none"),
        (lambda: search_cache([], []), "at least one setting, got none"),
        (lambda: search_cache([], cache_grid()), "at least one token, got none"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
