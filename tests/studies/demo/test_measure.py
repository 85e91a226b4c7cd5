"""What the demo claims, on the very fits that it shows."""

from dataclasses import replace

import pytest
import torch

from highrank.analysis.rank import log_prob_rank
from highrank.data import senses
from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.studies.demo.measure import (
    CLOSE_UP,
    LANGUAGES,
    NUM_COMPONENTS,
    RANK,
    Task,
    fit,
    fit_head,
    matching_softmax_size,
    plan,
)


def excess(name, wanted, num_steps=1000):
    """Excess of the demo's own fits, by head and size; with other numbers of steps."""
    language, found = LANGUAGES[name](0), {}
    for task in plan(seed=0, quick=False):
        key = task.head, task.context_size
        if task.language == name and task.matches is None and key in wanted:
            fitted = fit(replace(task, num_steps=num_steps))
            found[key] = language.excess(fitted.log_prob.numpy())
    assert found.keys() == wanted
    return found


@pytest.mark.parametrize("num_steps", [150, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_mixture_earns_what_the_page_says(name, num_steps):
    found = excess(name, {("softmax", CLOSE_UP), ("mos", CLOSE_UP)}, num_steps)
    assert found["mos", CLOSE_UP] <= found["softmax", CLOSE_UP] / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGES)
def test_contexts_earn_what_a_softmax_earns(name):
    sizes = (CLOSE_UP, RANK // 2)
    found = excess(name, {(head, size) for head in ("softmax", "moc") for size in sizes})
    for size in sizes:
        assert found["moc", size] == pytest.approx(found["softmax", size], rel=0.05)


@pytest.mark.slow
def test_a_softmax_of_full_rank_loses_nothing():
    assert excess("factorised", {("softmax", RANK - 1)})["softmax", RANK - 1] < 0.01


def test_the_plan_pairs_each_mixture_with_a_softmax_of_as_many_parameters():
    tasks = list(plan(seed=0, quick=False))
    mixtures = {(t.language, t.context_size) for t in tasks if t.head == "mos"}
    assert {(t.language, t.matches) for t in tasks if t.matches is not None} == mixtures
    assert len({t.context_size for t in tasks if t.matches is None}) <= 5


@pytest.mark.parametrize("size", [8, 16, 63])
def test_matched_softmaxes_have_as_many_parameters(size):
    d = matching_softmax_size(size, 400, 200)
    mixture = MixtureOfSoftmaxes(64, 200, NUM_COMPONENTS, size)
    softmax = Softmax(max(64, d), 200, d)
    count = [
        400 * head.hidden_size + sum(p.numel() for p in head.parameters())
        for head in (mixture, softmax)
    ]
    assert count[0] == pytest.approx(count[1], rel=0.01)


def test_a_matched_softmax_is_not_held_back_by_the_vectors_of_the_contexts():
    d = matching_softmax_size(RANK - 1, 400, 200)
    fitted = fit(Task("senses", "softmax", d, RANK - 1, seed=0, num_steps=3))
    assert log_prob_rank(fitted.log_prob)[0] == fitted.rank_bound == d + 2


def test_a_fit_is_a_distribution_in_float64_and_the_same_twice():
    one, two = (fit_head(senses(seed=3), "mos", 4, 8, seed=3, num_steps=5) for _ in range(2))
    assert one.log_prob.dtype == torch.float64
    torch.testing.assert_close(one.log_prob, two.log_prob, rtol=0, atol=0)
    torch.testing.assert_close(one.log_prob.exp().sum(-1), torch.ones(400, dtype=torch.float64))


def test_steps_bring_the_fit_closer_to_the_language():
    language = senses(seed=0)
    few, more = (fit_head(language, "softmax", 8, 1, seed=0, num_steps=n) for n in (1, 50))
    assert language.excess(more.log_prob.numpy()) < language.excess(few.log_prob.numpy()) / 2
