"""Search: each trial is the evaluation it stands for, and the best is the lowest."""

import math

import numpy as np
import pytest
import torch

from highrank.evaluation.cache import Block, with_cache
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.search import CacheGrid, dynamic_grid, search_cache, search_dynamic
from highrank.evaluation.static import Scored, score, summed
from highrank.evaluation.statistics import gradient_statistics
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V = 11


@pytest.fixture
def model():
    return LanguageModel(AWDLSTM(V, 6, (8,)), MixtureOfSoftmaxes(8, V, 3, 6)).double()


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(V, size=91)


@pytest.fixture
def statistics(model, text):
    return gradient_statistics(model, text, batch_size=2)


def test_every_trial_starts_from_the_trained_weights(model, text, statistics):
    before = [p.detach().clone() for p in model.parameters()]
    grid = dynamic_grid(DynamicSettings(), lrs=[1e-4, 1e-2], decays=[0.0, 5.0], epsilons=[1e-3])
    found = search_dynamic(model, text, statistics, grid)
    assert [trial.settings for trial in found.trials] == list(grid) and len(grid) == 4
    # The other way round: what came before a trial leaves no trace.
    for trial in reversed(found.trials):
        assert trial.nats == evaluate_dynamically(model, text, trial.settings, statistics).nats
    assert found.best.nats == min(trial.nats for trial in found.trials)
    assert len({trial.nats for trial in found.trials}) == 4 and found.num_tokens == 90
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_cap_takes_the_first_tokens(model, text, statistics):
    grid = dynamic_grid(DynamicSettings(), lrs=[1e-3], decays=[0.01])
    found = search_dynamic(model, text, statistics, grid, num_tokens=33)
    want = evaluate_dynamically(model, text[:34], grid[0], statistics)
    assert (found.best.nats, found.num_tokens) == want and want.num_tokens == 33


def test_a_trial_that_diverges_is_the_worst(model, text):
    grid = [DynamicSettings(rule="sgd", lr=lr, decay=0.0) for lr in (1e200, 0.1)]
    found = search_dynamic(model, text, None, grid)
    assert found.trials[0].nats == math.inf and found.best.settings.lr == 0.1


def test_the_default_grid_is_krauses_and_grows_with_the_segment():
    grid = dynamic_grid(DynamicSettings(segment=20, epsilon=1e-5))
    assert len(grid) == 24 and {s.epsilon for s in grid} == {1e-5}
    assert grid[0].lr == pytest.approx(1.2e-4) and grid[-1].decay == pytest.approx(0.02)


def test_progress_runs_through_all_trials(model, text, statistics):
    seen = []
    grid = dynamic_grid(DynamicSettings(), lrs=[1e-4, 1e-3], decays=[0.1])
    search_dynamic(
        model, text, statistics, grid, on_progress=lambda share, what: seen.append((share, what))
    )
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0 and 0.5 in shares
    assert "lr 0.001" in seen[-1][1] and "best so far" in seen[-1][1]


def test_the_search_of_the_cache_says_what_each_cache_says(model, text):
    grid = CacheGrid(windows=(3, 50, 20), thetas=(0.0, 2.0), weights=(0.0, 0.1, 0.5))
    found = search_cache(score(model, text, window=17), grid)
    assert len(found.trials) == 1 + 3 * 2 * 2 and found.num_tokens == 90
    assert [trial.settings.weight for trial in found.trials].count(0.0) == 1
    assert [trial.settings for trial in found.trials] == list(grid.settings())
    for trial in found.trials:
        want = summed(with_cache(score(model, text), trial.settings)).nats
        assert trial.nats == pytest.approx(want, rel=1e-12), trial.settings
    assert found.best.nats == min(trial.nats for trial in found.trials)


def test_the_text_is_scored_once_and_compared_once(model, text, watch):
    def once():
        yield from score(model, text)

    grid = CacheGrid(windows=(3, 50), thetas=(0.0, 1.0, 2.0), weights=(0.1, 0.2))
    segments = list(once())
    with watch() as seen:
        search_cache(iter(segments), grid)
    num_blocks = math.ceil(90 / 32)
    assert seen.num_multiplies == num_blocks


def test_no_cache_is_tried_once_and_compares_nothing(model, text, monkeypatch):
    monkeypatch.setattr(Block, "log_cache", lambda *_: pytest.fail("a cache was asked"))
    grid = CacheGrid(windows=(3, 50), thetas=(0.0, 1.0), weights=(0.0, 0.0))
    (trial,) = search_cache(score(model, text), grid).trials
    assert trial.nats == pytest.approx(summed(score(model, text)).nats, rel=1e-12)


def test_the_best_cache_of_a_text_that_repeats_itself_is_sharp():
    generator = torch.Generator().manual_seed(0)
    target, hidden = torch.randint(V, (12,), generator=generator), torch.eye(12)
    text = Scored(target.repeat(20), torch.full((240,), -math.log(V)), hidden.repeat(20, 1))
    grid = CacheGrid(windows=(6, 24), thetas=(0.0, 10.0), weights=(0.0, 0.5, 0.9))
    best = search_cache([text], grid).best.settings
    assert (best.window, best.theta, best.weight) == (24, 10.0, 0.9)


def test_mistakes_are_named(model, text, statistics):
    with pytest.raises(ValueError, match="at least one setting, got none"):
        search_dynamic(model, text, statistics, [])
    with pytest.raises(ValueError, match="at least one setting, got none"):
        search_cache([], CacheGrid(windows=()))
    with pytest.raises(ValueError, match="at least one token, got none"):
        search_cache([], CacheGrid())
    with pytest.raises(ValueError, match="num_tokens must be at least 1, got 0"):
        grid = dynamic_grid(DynamicSettings())
        search_dynamic(model, text, statistics, grid, num_tokens=0)
