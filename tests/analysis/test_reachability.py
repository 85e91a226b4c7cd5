"""Every verdict against convex hulls and linear programmes that we did not write."""

import importlib.util
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from highrank.analysis.reachability import decide_words
from highrank.analysis.reachability.check import is_exact, lead_bound, margins
from highrank.analysis.reachability.result import Proof, State, Verdict
from highrank.analysis.reachability.states import Ball, Box, Everywhere, behind_layer_norm


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def like_trained(vocab_size, size, seed=0):
    """Rare words are short, and all lean one way."""
    frequency = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    length = 0.1 + frequency.sqrt()
    vectors = gaussian(vocab_size, size, seed=seed) * length[:, None] + gaussian(size, seed=1)
    return vectors, frequency.log() / 3


def verdicts(*args, **kwargs):
    return [word.verdict.value for word in decide_words(*args, **kwargs).words]


def reachable(*args, **kwargs):
    found = decide_words(*args, **kwargs)
    assert not found.having(Verdict.UNDECIDED)
    return {word.word for word in found.having(Verdict.REACHABLE)}


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


def test_the_reachable_words_of_the_plane_are_the_corners_of_the_hull():
    weight = gaussian(300, 2)
    assert reachable(weight) == set(ConvexHull(weight.numpy()).vertices.tolist())


def test_with_a_bias_they_are_the_corners_of_the_hull_seen_from_above():
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


def test_on_a_line_only_the_ends_are_reachable():
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


def test_words_with_one_vector_and_bias_lead_together_or_not_at_all():
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


def test_positive_and_negative_zero_are_one_number():
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


def test_a_low_bias_forbids_a_word_in_a_bounded_set_only():
    weight, bias = torch.eye(3), torch.tensor([0.0, 0.0, -5.0])
    assert verdicts(weight, bias) == ["reachable"] * 3
    assert verdicts(weight, bias, Box(-1, 1)) == ["reachable", "reachable", "unreachable"]
    # The best state of a ball, (-1, -1, 2) turned to its surface, leads by √1.5 · radius − 5.
    assert verdicts(weight, bias, Ball(4.1)) == ["reachable"] * 3
    assert verdicts(weight, bias, Ball(4.0)) == ["reachable", "reachable", "unreachable"]


@pytest.mark.parametrize("num_words", [1, 3])
def test_one_vector_leads_alone_or_with_its_copies(num_words):
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


@pytest.mark.parametrize("states", [Box(-1, 1), Box(torch.tensor([-1.0, 0.0]), 2.0), Ball(1.0)])
def test_states_on_a_grid_find_no_word_that_is_called_unreachable(states):
    weight, bias = gaussian(80, 2), gaussian(80, seed=1) / 2
    grid = torch.cartesian_prod(*[torch.linspace(-2, 2, 801, dtype=torch.float64)] * 2)
    grid = grid[states.contains(grid)]
    winners = set((grid @ weight.T + bias).argmax(dim=1).tolist())
    found = reachable(weight, bias, states)
    assert winners <= found
    assert len(found - winners) <= 2
    assert found < reachable(weight, bias)


def test_what_a_layer_norm_makes_most_likely_is_reachable():
    weight, bias = like_trained(60, 4)
    gain, shift = gaussian(4, seed=2), gaussian(4, seed=3)
    normed = F.layer_norm(gaussian(20_000, 4, seed=4), (4,))
    matrix, offset, ball = behind_layer_norm(weight, bias, gain=gain, shift=shift)
    logits = (normed * gain + shift) @ weight.T + bias
    torch.testing.assert_close(normed @ matrix.T + offset, logits)
    found = reachable(matrix, offset, ball)
    assert set(logits.argmax(dim=1).tolist()) <= found
    assert len(found) < 60


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


def test_a_proof_that_rounding_spoils_says_so():
    corners = gaussian(3, 5)
    weight = torch.cat([corners, corners.mean(dim=0, keepdim=True)])
    proof = decide_words(weight).words[3].certificate
    assert isinstance(proof, Proof) and not proof.is_exact
    assert 0 < proof.lead < 1e-14


def test_a_proof_with_the_wrong_weights_is_refused():
    weight = torch.cat([gaussian(3, 2), torch.zeros(1, 2)]).double()
    bias, words = torch.zeros(4).double(), torch.arange(3)
    wrong = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert lead_bound(weight, bias, Everywhere(), 3, words, wrong) > 0.1
    assert lead_bound(weight, bias, Ball(2.0), 3, words, wrong) > 0.2
    assert not is_exact(weight, bias, 3, words, wrong)


def test_a_mean_of_vectors_proves_nothing_for_a_word_with_a_larger_bias():
    weight = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    words, right = torch.arange(3), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for lift in (0.0, -1.0, 1.0):
        bias = torch.tensor([0.0, 0.0, 0.0, lift], dtype=torch.float64)
        assert is_exact(weight, bias, 3, words, right) == (lift <= 0)
        lead = lead_bound(weight, bias, Everywhere(), 3, words, right)
        assert lead == pytest.approx(max(lift, 0.0), abs=1e-14)


def test_the_bound_of_a_proof_in_a_box_is_attained_at_a_corner():
    weight, bias, words = gaussian(6, 3), gaussian(6, seed=1), torch.arange(1, 6)
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-0.5, 2.0, 3.0])
    corners = torch.cartesian_prod(*torch.stack([low, high], dim=1)).double()
    shares = gaussian(5, seed=2).softmax(0)
    logits = corners @ weight.T + bias  # (8, 6)
    want = (logits[:, 0] - logits[:, 1:] @ shares).max().item()
    assert lead_bound(weight, bias, Box(low, high), 0, words, shares) == pytest.approx(want)


def test_a_layer_norm_cannot_tell_vectors_that_differ_by_a_constant():
    weight = torch.tensor([[1.0, 0.0, -1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
    matrix, offset, ball = behind_layer_norm(weight)
    assert verdicts(matrix, offset, ball) == ["tied", "tied", "reachable"]
    matrix, offset, ball = behind_layer_norm(weight, is_centred=False)
    assert verdicts(matrix, offset, ball) == ["reachable"] * 3


def test_a_state_outside_the_set_is_refused():
    weight, bias = torch.eye(2).double(), torch.zeros(2).double()
    words, hidden = torch.tensor([0]), torch.tensor([[1.0, 0.0]]).double() * 1.1
    assert margins(weight, bias, Everywhere(), words, hidden).item() == pytest.approx(1.1)
    for states in (Box(-1, 1), Ball(1.0)):
        assert margins(weight, bias, states, words, hidden).item() == -math.inf


def test_a_lead_within_rounding_errors_is_no_certificate():
    weight = torch.tensor([[1.0], [1.0 - 2**-53]], dtype=torch.float64)
    margin = margins(weight, torch.zeros(2).double(), Everywhere(), torch.tensor([0]), weight[:1])
    assert margin.item() < 0


def test_progress_grows_to_one():
    shares = []
    decide_words(gaussian(100, 2), on_progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_missing_solver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'highrank\[audit\]'"):
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


@pytest.mark.parametrize("make", [lambda: Box(1, -1), lambda: Box(0, math.inf), lambda: Ball(0.0)])
def test_sets_without_states_or_bounds_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
