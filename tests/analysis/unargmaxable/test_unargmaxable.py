"""Every verdict against convex hulls and linear programmes that we did not write."""

import importlib.util
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.result import State, Verdict
from highrank.analysis.unargmaxable.states import Box


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def like_trained(vocab_size, size, seed=0):
    """Rare words are short, and all lean one way."""
    frequency = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    length = 0.1 + frequency.sqrt()
    vectors = gaussian(vocab_size, size, seed=seed) * length[:, None] + gaussian(size, seed=1)
    return vectors, frequency.log() / 3


def exact_lead(weight, bias, word, hidden):
    """Lead of a word over each other, in rational numbers."""
    state = [Fraction(x) for x in hidden.tolist()]
    logits = [
        sum((Fraction(w) * h for w, h in zip(row, state, strict=True)), Fraction(b))
        for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
    ]
    return [logits[word] - other for other in logits]


def solved(matrix, right):
    """Gauss and Jordan in rational numbers; the matrix is square and regular."""
    rows = [[Fraction(x) for x in [*row, y]] for row, y in zip(matrix, right, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(len(rows)):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]


def assert_certified(weight, bias, word):
    """Check one certificate with rational numbers."""
    found, index = word.certificate, word.word
    if isinstance(found, State):
        lead = exact_lead(weight, bias, index, found.hidden)
        outside = [x for other, x in enumerate(lead) if other not in word.group]
        assert min(outside) >= Fraction(found.margin) > 0
        return
    assert found.is_exact
    num_extra = len(found.words) - weight.size(1)
    if num_extra in (1, 2):
        # With one word more the mean of the biases is met, too.
        columns = torch.cat([weight, torch.ones(len(weight), 1), bias[:, None]], dim=1)
        columns = columns[:, : len(found.words)]
        weights = solved(columns[found.words].T.tolist(), columns[index].tolist())
        assert min(weights) > 0
        mean = sum(
            x * Fraction(b) for x, b in zip(weights, bias[found.words].tolist(), strict=True)
        )
        assert mean >= Fraction(bias[index].item())


def best_lead(weight, bias, word, bounds):
    """By one programme over the whole vocabulary; at most 1."""
    others = [j for j in range(len(weight)) if j != word]
    above = np.c_[weight[others] - weight[word], np.ones(len(others))]
    cost = [0.0] * weight.shape[1] + [-1.0]
    every = [*[bounds] * weight.shape[1], (None, 1.0)]
    return -linprog(cost, A_ub=above, b_ub=bias[word] - bias[others], bounds=every).fun


def test_the_reachable_words_of_the_plane_are_the_corners_of_the_hull(reachable):
    weight = gaussian(300, 2)
    assert reachable(weight) == set(ConvexHull(weight.numpy()).vertices.tolist())


def test_with_a_bias_they_are_the_corners_of_the_hull_seen_from_above(reachable):
    weight, bias = gaussian(300, 2), gaussian(300, seed=1)
    hull = ConvexHull(torch.cat([weight, bias[:, None]], dim=1).numpy())
    above = hull.simplices[hull.equations[:, 2] > 0]
    assert reachable(weight, bias) == set(above.flatten().tolist())


@pytest.mark.parametrize("has_bias", [False, True])
def test_certificates_hold_in_rational_arithmetic(has_bias):
    weight, bias = gaussian(60, 3), gaussian(60, seed=1) * has_bias
    found = decide_words(weight, bias)
    assert min(found.counts[Verdict.REACHABLE], found.counts[Verdict.UNREACHABLE]) > 5
    for word in found.words:
        assert_certified(weight, bias, word)


def test_on_a_line_only_the_ends_are_reachable(verdicts):
    weight = torch.tensor([[0.5], [-2.0], [3.0], [0.0], [2.9]])
    want = ["unreachable", "reachable", "reachable", "unreachable", "unreachable"]
    assert verdicts(weight) == want
    # A bias lifts the middle above the line between the ends.
    assert verdicts(weight, torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])) == [
        "unreachable",
        "reachable",
        "reachable",
        "reachable",
        "unreachable",
    ]


def test_words_with_one_vector_and_bias_lead_together_or_not_at_all(verdicts):
    corners = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    weight = torch.cat([corners, corners[:1], torch.zeros(2, 2)])
    found = decide_words(weight)
    names = [word.verdict.value for word in found.words]
    assert names == ["tied", "reachable", "reachable", "tied", "unreachable", "unreachable"]
    assert found.words[3].group == (0, 3)
    assert found.words[5].group == (4, 5)
    # A larger bias parts the twins.
    apart = verdicts(weight, torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0]))
    assert apart[0] == "unreachable" and apart[3] == "reachable"


def test_positive_and_negative_zero_are_one_number(verdicts):
    assert verdicts(torch.tensor([[0.0], [-0.0], [1.0]])) == ["tied", "tied", "reachable"]


def test_a_zero_vector_among_vectors_on_all_sides_is_unreachable():
    weight = torch.cat([gaussian(40, 4), torch.zeros(1, 4)])
    word = decide_words(weight).words[-1]
    assert word.verdict is Verdict.UNREACHABLE
    assert_certified(weight, torch.zeros(41), word)


def test_a_bias_of_minus_infinity_forbids_a_word_and_frees_those_behind_it():
    weight = torch.tensor([[0.0], [1.0], [2.0]])
    found = decide_words(weight, torch.tensor([0.0, 0.0, -math.inf]))
    assert [w.verdict.value for w in found.words] == ["reachable", "reachable", "unreachable"]
    assert found.words[2].certificate.lead == -math.inf


@pytest.mark.parametrize("num_words", [1, 3])
def test_one_vector_leads_alone_or_with_its_copies(num_words, verdicts):
    want = "reachable" if num_words == 1 else "tied"
    assert verdicts(torch.ones(num_words, 2)) == [want] * num_words


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(2, 8), st.sampled_from([None, Box(-1, 1)]))
def test_small_heads_agree_with_one_programme_over_all_words(data, size, vocab_size, states):
    numbers = st.lists(st.integers(-2, 2), min_size=vocab_size, max_size=vocab_size)
    weight = torch.tensor([data.draw(numbers) for _ in range(size)], dtype=torch.float64).T
    bias = torch.tensor(data.draw(numbers), dtype=torch.float64)
    bounds = (None, None) if states is None else (-1, 1)
    for word in decide_words(weight, bias, states).words:
        lead = best_lead(weight.numpy(), bias.numpy(), word.word, bounds)
        assert (word.verdict is Verdict.REACHABLE) == (lead > 1e-7)
        assert word.verdict is not Verdict.UNDECIDED


def test_every_word_of_a_head_like_a_trained_one_is_decided():
    weight, bias = like_trained(400, 12)
    found = decide_words(weight.float(), bias.float())
    weight, bias = weight.float().double(), bias.float().double()
    assert found.counts[Verdict.UNDECIDED] == 0
    assert min(found.counts[Verdict.REACHABLE], found.counts[Verdict.UNREACHABLE]) > 20
    assert found.num_searched + found.num_inside + found.num_programmes == 400
    for word in found.words:
        if isinstance(word.certificate, State):
            assert (weight @ word.certificate.hidden + bias).argmax() == word.word
        else:
            mean = word.certificate.weights @ weight[word.certificate.words]
            torch.testing.assert_close(mean, weight[word.word], atol=1e-12, rtol=0)
            assert word.certificate.is_exact
            lift = word.certificate.weights @ bias[word.certificate.words] - bias[word.word]
            assert lift >= -1e-12


def test_progress_grows_to_one():
    shares = []
    decide_words(gaussian(100, 2), on_progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_missing_solver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[audit\]'"):
        decide_words(torch.eye(2))


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(3), None, r"weight must be a finite matrix, got \(3,\)"),
        (torch.full((2, 2), math.nan), None, "weight must be a finite matrix"),
        (torch.eye(2), torch.zeros(3), r"bias must have shape \(2,\), got \(3,\)"),
        (torch.eye(2), torch.tensor([0.0, math.inf]), "bias must be finite or −inf"),
        (torch.eye(2), torch.full((2,), -math.inf), "at least one word"),
    ],
)
def test_what_is_no_head_is_refused(weight, bias, message):
    with pytest.raises(ValueError, match=message):
        decide_words(weight, bias)
