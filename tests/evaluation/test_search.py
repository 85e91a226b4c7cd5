"""Search: each trial is the evaluation it stands for, and the best is the lowest."""

import math

import numpy as np
import pytest
import torch

from highrank.evaluation.cache import Block, CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.search import cache_grid, dynamic_grid, search_cache, search_dynamic
from highrank.evaluation.static import Output, Scored, score, summed
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
    grid = dynamic_grid(lr=[1e-4, 1e-2], decay=[0.0, 5.0], epsilon=[1e-3])
    found = search_dynamic(model, text, statistics, grid)
    assert [trial.settings for trial in found.trials] == list(grid) and len(grid) == 4
    # The other way round: what came before a trial leaves no trace.
    for trial in reversed(found.trials):
        assert trial.nats == evaluate_dynamically(model, text, trial.settings, statistics).nats
    assert found.best.nats == min(trial.nats for trial in found.trials)
    assert len({trial.nats for trial in found.trials}) == 4 and found.num_tokens == 90
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


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


def test_the_default_grid_is_krauses_and_grows_with_the_segment():
    grid = dynamic_grid(segment=20, epsilon=[1e-5])
    assert len(grid) == 24 and {s.epsilon for s in grid} == {1e-5}
    assert grid[0].lr == pytest.approx(1.2e-4) and grid[-1].decay == pytest.approx(0.02)


def test_progress_runs_through_all_trials(model, text, statistics):
    seen = []
    grid = dynamic_grid(lr=[1e-4, 1e-3], decay=[0.1])
    search_dynamic(
        model, text, statistics, grid, on_progress=lambda *progress: seen.append(progress)
    )
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and 0.5 in fractions
    assert "lr 0.001" in seen[-1][1] and "best so far" in seen[-1][1]


def test_without_a_search_there_is_one_setting_and_the_default_for_what_is_not_given():
    assert dynamic_grid(is_search=False) == (DynamicSettings(),)
    assert cache_grid(is_search=False) == (CacheSettings(),)
    (settings,) = dynamic_grid(lr=[0.5], segment=9, rule="sgd", adapt=["head"], is_search=False)
    assert settings == DynamicSettings(lr=0.5, segment=9, rule="sgd", adapt=("head",))
    (settings,) = cache_grid(theta=[0.7], is_search=False)
    assert settings == CacheSettings(theta=0.7)
    assert len(cache_grid()) == 1 + 3 * 7 * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": [1.0, 2.0], "is_search": False}, "lr must be one value without a search, got 2"),
        ({"rule": "sgd"}, "lr must be given for the rule sgd"),
        ({"rule": "sgd", "lr": [1.0], "epsilon": [1.0]}, "epsilon must go with the rule rms"),
        ({"convention": "ms", "lr": [1.0]}, "lr, epsilon and decay must be given with the conv"),
    ],
)
def test_grids_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dynamic_grid(**options)


def test_the_search_of_the_cache_has_the_loss_of_each_cache(model, text):
    grid = cache_grid(window=(3, 50, 20), theta=(0.0, 2.0), weight=(0.0, 0.1, 0.5))
    found = search_cache(score(model, text, window=17), grid)
    assert len(found.trials) == 1 + 3 * 2 * 2 and found.num_tokens == 90
    assert [trial.settings.weight for trial in found.trials].count(0.0) == 1
    assert [trial.settings for trial in found.trials] == list(grid)
    for trial in found.trials:
        want = summed(with_cache(score(model, text), trial.settings)).nats
        assert trial.nats == pytest.approx(want, rel=1e-12), trial.settings
    assert found.best.nats == min(trial.nats for trial in found.trials)


def test_the_text_is_scored_once_and_compared_once(model, text, watch):
    def once():
        yield from score(model, text)

    grid = cache_grid(window=(3, 50), theta=(0.0, 1.0, 2.0), weight=(0.1, 0.2))
    segments = list(once())
    with watch() as seen:
        search_cache(iter(segments), grid)
    num_blocks = math.ceil(90 / 32)
    assert seen.num_multiplies == num_blocks


def test_no_cache_is_tried_once_and_compares_nothing(model, text, monkeypatch):
    monkeypatch.setattr(Block, "log_cache", lambda *_: pytest.fail("a cache was asked"))
    grid = cache_grid(window=(3, 50), theta=(0.0, 1.0), weight=(0.0, 0.0))
    (trial,) = search_cache(score(model, text), grid).trials
    assert trial.nats == pytest.approx(summed(score(model, text)).nats, rel=1e-12)


def test_the_best_cache_of_a_text_that_repeats_itself_is_sharp():
    generator = torch.Generator().manual_seed(0)
    target, hidden = torch.randint(V, (12,), generator=generator), torch.eye(12)
    text = Scored(target.repeat(20), torch.full((240,), -math.log(V)), hidden.repeat(20, 1))
    grid = cache_grid(window=(6, 24), theta=(0.0, 10.0), weight=(0.0, 0.5, 0.9))
    best = search_cache([text], grid).best.settings
    assert (best.window, best.theta, best.weight) == (24, 10.0, 0.9)


def test_mistakes_are_named(model, text, statistics):
    with pytest.raises(ValueError, match="at least one setting, got none"):
        search_dynamic(model, text, statistics, [])
    with pytest.raises(ValueError, match="at least one setting, got none"):
        search_cache([], [])
    with pytest.raises(ValueError, match="at least one token, got none"):
        search_cache([], cache_grid())
