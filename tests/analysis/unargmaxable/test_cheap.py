"""The tests that need no linear programme: long vectors lead, means of others never do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.problem import build_problem
from highrank.analysis.unargmaxable.program import MAX_SIZE, inside
from highrank.analysis.unargmaxable.result import Proof, Verdict
from highrank.analysis.unargmaxable.search import search_states
from highrank.analysis.unargmaxable.states import Everywhere

CORNERS = torch.tensor([[0.0, 4.0], [4.0, -4.0], [-4.0, -4.0]], dtype=torch.float64)


def problem_of(weight, bias=None):
    return build_problem(
        weight, weight.new_zeros(len(weight)) if bias is None else bias, Everywhere()
    )


def test_the_longest_vector_is_found_at_the_first_look(monkeypatch):
    monkeypatch.setattr("highrank.analysis.unargmaxable.search.NUM_SWEEPS", 1)
    for seed in range(5):
        weight = torch.from_numpy(np.random.default_rng(seed).standard_normal((200, 3)))
        longest = (weight - weight.mean(0)).norm(dim=1).argmax()
        found = search_states(problem_of(weight))
        assert found.margin[longest] > 0
        assert (weight @ found.hidden[longest]).argmax() == longest


def test_vectors_of_one_length_need_no_programme():
    angle = torch.arange(50, dtype=torch.float64)
    found = decide_words(torch.stack([angle.cos(), angle.sin()], dim=1))
    assert (found.num_searched, found.num_inside, found.num_programmes) == (50, 0, 0)


def test_many_words_inside_a_simplex_need_no_programme_of_their_own():
    inner = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, size=(20, 2)))
    weight = torch.cat([CORNERS, inner])
    found = decide_words(weight)
    assert found.num_searched == 3 and found.num_inside + found.num_programmes == 20
    assert min(found.num_inside, found.num_programmes) > 5
    for word in found.words[3:]:
        proof = word.certificate
        assert isinstance(proof, Proof) and proof.is_exact
        mean = proof.weights @ weight[proof.words]
        torch.testing.assert_close(mean, weight[word.word], rtol=0, atol=1e-14)


def area(a, b, c):
    return np.linalg.det([b - a, c - a]) / 2


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=2))
def test_inside_means_positive_barycentric_coordinates(point):
    word = torch.tensor([point], dtype=torch.float64)
    problem = problem_of(torch.cat([CORNERS, word]))
    found, weights = inside(problem, torch.arange(3), torch.tensor([3]))
    # By areas: each weight is that of the triangle opposite to its corner.
    corners = CORNERS.numpy()
    whole = area(*corners)
    want = [area(*np.insert(np.delete(corners, k, 0), k, point, 0)) / whole for k in range(3)]
    if min(map(abs, want)) > 1e-9:
        assert (len(found) == 1) == (min(want) > 0)
    if len(found):
        np.testing.assert_allclose(weights[0], want, atol=1e-12)


@pytest.mark.parametrize("lift, is_inside", [(-1.0, True), (0.0, True), (1.0, False)])
def test_a_word_above_the_simplex_is_not_inside(lift, is_inside):
    weight = torch.cat([CORNERS, torch.zeros(1, 2).double()])
    bias = torch.tensor([0.0, 0.0, 0.0, lift], dtype=torch.float64)
    found, _ = inside(problem_of(weight, bias), torch.arange(3), torch.tensor([3]))
    assert len(found) == is_inside


def test_in_many_dimensions_programmes_decide_alone():
    size = MAX_SIZE + 1
    corners = torch.cat([torch.eye(size), -torch.ones(1, size)]).double() * 4
    inner = 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((3, size)))
    found = decide_words(torch.cat([corners, inner]))
    assert found.counts[Verdict.UNREACHABLE] == found.num_programmes == 3
