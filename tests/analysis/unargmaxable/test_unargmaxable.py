"""Every verdict against convex hulls and linear programs of scipy."""

import importlib.util
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from highrank.analysis.unargmaxable import Verdict, decide_tokens
from highrank.analysis.unargmaxable.certificate import State
from highrank.analysis.unargmaxable.problem import Box


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def like_trained(vocab_size, size, seed=0):
    """Rare tokens are short, and all lean one way."""
    frequency = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    length = 0.1 + frequency.sqrt()
    vectors = gaussian(vocab_size, size, seed=seed) * length[:, None] + gaussian(size, seed=1)
    return vectors, frequency.log() / 3


def exact_lead(weight, bias, token, hidden):
    """Lead of a token over each other, in rational numbers."""
    state = [Fraction(x) for x in hidden.tolist()]
    logits = [
        sum((Fraction(w) * h for w, h in zip(row, state, strict=True)), Fraction(b))
        for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
    ]
    return [logits[token] - other for other in logits]


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


def assert_certified(weight, bias, token):
    """Check one certificate with rational numbers."""
    found, index = token.certificate, token.token
    if isinstance(found, State):
        lead = exact_lead(weight, bias, index, found.hidden)
        outside = [x for other, x in enumerate(lead) if other not in token.group]
        assert min(outside) >= Fraction(found.margin) > 0
        return
    assert found.is_exact
    num_extra = len(found.tokens) - weight.size(1)
    if num_extra in (1, 2):
        # With one token more the mean of the biases is met, too.
        columns = torch.cat([weight, torch.ones(len(weight), 1), bias[:, None]], dim=1)
        columns = columns[:, : len(found.tokens)]
        weights = solved(columns[found.tokens].T.tolist(), columns[index].tolist())
        assert min(weights) > 0
        mean = sum(
            x * Fraction(b) for x, b in zip(weights, bias[found.tokens].tolist(), strict=True)
        )
        assert mean >= Fraction(bias[index].item())


def best_lead(weight, bias, token, bounds):
    """By one program over the whole vocabulary; at most 1."""
    others = [j for j in range(len(weight)) if j != token]
    above = np.c_[weight[others] - weight[token], np.ones(len(others))]
    cost = [0.0] * weight.shape[1] + [-1.0]
    every = [*[bounds] * weight.shape[1], (None, 1.0)]
    return -linprog(cost, A_ub=above, b_ub=bias[token] - bias[others], bounds=every).fun


def counts(found):
    return Counter(token.verdict for token in found)


def test_the_argmaxable_tokens_of_the_plane_are_the_corners_of_the_hull(argmaxable):
    weight = gaussian(300, 2)
    assert argmaxable(weight) == set(ConvexHull(weight.numpy()).vertices.tolist())


def test_with_a_bias_they_are_the_corners_of_the_hull_seen_from_above(argmaxable):
    weight, bias = gaussian(300, 2), gaussian(300, seed=1)
    hull = ConvexHull(torch.cat([weight, bias[:, None]], dim=1).numpy())
    above = hull.simplices[hull.equations[:, 2] > 0]
    assert argmaxable(weight, bias) == set(above.flatten().tolist())


@pytest.mark.parametrize("has_bias", [False, True])
def test_certificates_hold_in_rational_arithmetic(has_bias):
    weight, bias = gaussian(60, 3), gaussian(60, seed=1) * has_bias
    found = decide_tokens(weight, bias)
    assert min(counts(found)[Verdict.ARGMAXABLE], counts(found)[Verdict.UNARGMAXABLE]) > 5
    for token in found:
        assert_certified(weight, bias, token)


def test_on_a_line_only_the_ends_are_argmaxable(verdicts):
    weight = torch.tensor([[0.5], [-2.0], [3.0], [0.0], [2.9]])
    want = ["unargmaxable", "argmaxable", "argmaxable", "unargmaxable", "unargmaxable"]
    assert verdicts(weight) == want
    # A bias lifts the middle above the line between the ends.
    assert verdicts(weight, torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])) == [
        "unargmaxable",
        "argmaxable",
        "argmaxable",
        "argmaxable",
        "unargmaxable",
    ]


def test_tokens_with_one_vector_and_bias_lead_together_or_not_at_all(verdicts):
    corners = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    weight = torch.cat([corners, corners[:1], torch.zeros(2, 2)])
    found = decide_tokens(weight)
    names = [token.verdict.value for token in found]
    assert names == ["tied", "argmaxable", "argmaxable", "tied", "unargmaxable", "unargmaxable"]
    assert found[3].group == (0, 3)
    assert found[5].group == (4, 5)
    # A larger bias separates the twins.
    apart = verdicts(weight, torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0]))
    assert apart[0] == "unargmaxable" and apart[3] == "argmaxable"


def test_positive_and_negative_zero_are_one_number(verdicts):
    assert verdicts(torch.tensor([[0.0], [-0.0], [1.0]])) == ["tied", "tied", "argmaxable"]


def test_a_zero_vector_among_vectors_on_all_sides_is_unargmaxable():
    weight = torch.cat([gaussian(40, 4), torch.zeros(1, 4)])
    token = decide_tokens(weight)[-1]
    assert token.verdict is Verdict.UNARGMAXABLE
    assert_certified(weight, torch.zeros(41), token)


def test_a_bias_of_minus_infinity_forbids_a_token_and_frees_those_behind_it():
    weight = torch.tensor([[0.0], [1.0], [2.0]])
    found = decide_tokens(weight, torch.tensor([0.0, 0.0, -math.inf]))
    assert [t.verdict.value for t in found] == ["argmaxable", "argmaxable", "unargmaxable"]
    assert found[2].certificate.lead == -math.inf


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_one_vector_leads_alone_or_with_its_copies(num_tokens, verdicts):
    want = "argmaxable" if num_tokens == 1 else "tied"
    assert verdicts(torch.ones(num_tokens, 2)) == [want] * num_tokens


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(2, 8), st.sampled_from([None, Box(1.0)]))
def test_small_heads_agree_with_one_program_over_all_tokens(data, size, vocab_size, states):
    numbers = st.lists(st.integers(-2, 2), min_size=vocab_size, max_size=vocab_size)
    weight = torch.tensor([data.draw(numbers) for _ in range(size)], dtype=torch.float64).T
    bias = torch.tensor(data.draw(numbers), dtype=torch.float64)
    bounds = (None, None) if states is None else (-1, 1)
    for token in decide_tokens(weight, bias, states):
        lead = best_lead(weight.numpy(), bias.numpy(), token.token, bounds)
        assert (token.verdict is Verdict.ARGMAXABLE) == (lead > 1e-7)
        assert token.verdict is not Verdict.UNDECIDED


def test_every_token_of_a_head_like_a_trained_one_is_decided():
    weight, bias = like_trained(400, 12)
    found = decide_tokens(weight.float(), bias.float())
    weight, bias = weight.float().double(), bias.float().double()
    assert counts(found)[Verdict.UNDECIDED] == 0
    assert min(counts(found)[Verdict.ARGMAXABLE], counts(found)[Verdict.UNARGMAXABLE]) > 20
    for token in found:
        proof = token.certificate
        if isinstance(proof, State):
            assert (weight @ proof.hidden + bias).argmax() == token.token
        else:
            mean = proof.weights @ weight[proof.tokens]
            torch.testing.assert_close(mean, weight[token.token], atol=1e-12, rtol=0)
            assert proof.is_exact
            assert proof.weights @ bias[proof.tokens] - bias[token.token] >= -1e-12


def test_progress_grows_to_one():
    shares = []
    decide_tokens(gaussian(100, 2), on_progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_missing_solver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[cli\]'"):
        decide_tokens(torch.eye(2))


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(3), None, r"weight must be a finite matrix, got \(3,\)"),
        (torch.full((2, 2), math.nan), None, "weight must be a finite matrix"),
        (torch.eye(2), torch.zeros(3), r"bias must have shape \(2,\), got \(3,\)"),
        (torch.eye(2), torch.tensor([0.0, math.inf]), "bias must be finite or −inf"),
        (torch.eye(2), torch.full((2,), -math.inf), "at least one token"),
    ],
)
def test_what_is_no_head_is_refused(weight, bias, message):
    with pytest.raises(ValueError, match=message):
        decide_tokens(weight, bias)


def test_a_sample_has_the_verdicts_of_the_whole_and_leaves_the_others_untried():
    weight, bias = like_trained(60, 4)
    whole, sample = decide_tokens(weight, bias), decide_tokens(weight, bias, num_sampled=25)
    tried = [token for token in sample if not token.is_untried]
    assert len(tried) == 25 and len(counts(tried)) == 2
    assert all(token.verdict is whole[token.token].verdict for token in tried)
    assert all(token.certificate is None for token in sample if token.is_untried)


def test_a_sample_of_one_vector_is_decided():
    assert counts(decide_tokens(torch.ones(3, 2), num_sampled=2)) == {Verdict.TIED: 3}
