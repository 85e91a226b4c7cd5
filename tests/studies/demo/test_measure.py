"""What the demo claims, on the very fits that it shows."""

import pytest

from highrank.analysis.rank import log_prob_rank
from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.studies.demo.measure import (
    CLOSE_UP,
    LANGUAGES,
    NUM_COMPONENTS,
    RANK,
    Task,
    fit,
    matching_softmax_size,
    plan,
)


@pytest.fixture(scope="module", params=list(LANGUAGES))
def excess(request):
    """Excess by head and size, for the sizes that the claims are about."""
    language = LANGUAGES[request.param](0)
    wanted = {(head, CLOSE_UP) for head in ("softmax", "moc", "mos")}
    wanted |= {(head, RANK // 2) for head in ("softmax", "moc")}
    wanted |= {("softmax", RANK - 1)} if request.param == "factorised" else set()
    found = {}
    for task in plan(seed=0, quick=False):
        key = task.head, task.context_size
        if task.language == request.param and task.matches is None and key in wanted:
            found[key] = language.excess(fit(task).log_prob.numpy())
    assert found.keys() == wanted
    return request.param, found


def test_heads_earn_what_the_page_says(excess):
    name, found = excess
    assert found["mos", CLOSE_UP] <= found["softmax", CLOSE_UP] / 4
    for size in (CLOSE_UP, RANK // 2):
        assert found["moc", size] == pytest.approx(found["softmax", size], rel=0.05)
    if name == "factorised":
        assert found["softmax", RANK - 1] < 0.01


def test_the_plan_pairs_each_mixture_with_a_softmax_of_as_many_parameters():
    tasks = list(plan(seed=0, quick=False))
    mixtures = {(t.language, t.context_size) for t in tasks if t.head == "mos"}
    assert {(t.language, t.matches) for t in tasks if t.matches is not None} == mixtures
    assert len({t.context_size for t in tasks if t.matches is None}) <= 5


def test_a_matched_softmax_follows_the_heads_of_the_size_that_it_matches():
    tasks = list(plan(seed=0, quick=True))
    for group in zip(*(tasks[start::4] for start in range(4)), strict=True):
        assert [task.head for task in group] == ["softmax", "moc", "mos", "softmax"]
        assert {task.context_size for task in group[:3]} == {group[3].matches}


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
