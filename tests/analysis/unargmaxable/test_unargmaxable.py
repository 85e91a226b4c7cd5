"""Every verdict against convex hulls and linear programs of scipy, also when time is short."""

import importlib.util
import itertools
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

from highrank.analysis import unargmaxable as module
from highrank.analysis.theory import rational
from highrank.analysis.unargmaxable import Verdict, certificate, decide_tokens, problem
from highrank.analysis.unargmaxable.certificate import Proof, State, decide_token, solve
from highrank.analysis.unargmaxable.problem import (
    Box,
    Deadline,
    Everywhere,
    OutOfTime,
    build_problem,
)

A, T, U, OPEN = Verdict.ARGMAXABLE, Verdict.TIED, Verdict.UNARGMAXABLE, Verdict.UNDECIDED
CORNERS = [[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]]
LINE = [[0.5], [-2.0], [3.0], [0.0], [2.9]]


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def like_trained(vocab_size, size):
    """Rare tokens are short, and all lean one way."""
    frequency = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    length = 0.1 + frequency.sqrt()
    return gaussian(vocab_size, size) * length[:, None] + gaussian(
        size, seed=1
    ), frequency.log() / 3


def verdicts(*args, **options):
    return [token.verdict for token in decide_tokens(*args, **options)]


def argmaxable(*args):
    return {token for token, verdict in enumerate(verdicts(*args)) if verdict is A}


def exact_lead(weight, bias, token, hidden):
    """Lead of a token over each other, in rational numbers."""
    logits = rational(weight.tolist()) @ rational(hidden.tolist()) + rational(bias.tolist())
    return logits[token] - logits


def assert_certified(weight, bias, token):
    """Check one certificate with rational numbers."""
    found, index = token.certificate, token.token
    if isinstance(found, State):
        lead = exact_lead(weight, bias, index, found.hidden)
        outside = [x for other, x in enumerate(lead) if other not in token.group]
        assert min(outside) >= Fraction(found.margin) > 0
        return
    assert found.is_exact
    if len(found.tokens) - weight.size(1) in (1, 2):
        # With one token more the mean of the biases is met, too.
        columns = torch.cat([weight, torch.ones(len(weight), 1), bias[:, None]], dim=1)
        columns = columns[:, : len(found.tokens)]
        weights = solved(columns[found.tokens].T, columns[index])
        assert min(weights) > 0
        assert weights @ rational(bias[found.tokens].tolist()) >= Fraction(bias[index].item())


def solved(matrix, right):
    """Gauss and Jordan in rational numbers; the matrix is square and regular."""
    rows = rational(torch.cat([matrix, right[:, None]], dim=1).tolist())
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i, k] != 0)
        rows[[k, pivot]] = rows[[pivot, k]]
        rows[k] = rows[k] / rows[k, k]
        others = np.arange(len(rows)) != k
        rows[others] = rows[others] - np.outer(rows[others, k], rows[k])
    return rows[:, -1]


def best_lead(weight, bias, token, bounds):
    """By one program over the whole vocabulary; at most 1."""
    others = [j for j in range(len(weight)) if j != token]
    above = np.c_[weight[others] - weight[token], np.ones(len(others))]
    cost = [0.0] * weight.shape[1] + [-1.0]
    every = [*[bounds] * weight.shape[1], (None, 1.0)]
    return -linprog(cost, A_ub=above, b_ub=bias[token] - bias[others], bounds=every).fun


def test_the_argmaxable_tokens_of_the_plane_are_the_corners_of_the_hull():
    weight, bias = gaussian(300, 2), gaussian(300, seed=1)
    assert argmaxable(weight) == set(ConvexHull(weight.numpy()).vertices.tolist())
    # With a bias, the corners of the hull seen from above.
    hull = ConvexHull(torch.cat([weight, bias[:, None]], dim=1).numpy())
    above = hull.simplices[hull.equations[:, 2] > 0]
    assert argmaxable(weight, bias) == set(above.flatten().tolist())


@pytest.mark.parametrize("has_bias", [False, True])
def test_certificates_hold_in_rational_arithmetic(has_bias):
    weight, bias = gaussian(60, 3), gaussian(60, seed=1) * has_bias
    found = decide_tokens(weight, bias)
    assert min(Counter(token.verdict for token in found).values()) > 5
    for token in found:
        assert_certified(weight, bias, token)


@pytest.mark.parametrize(
    ("weight", "bias", "states", "want"),
    [
        (LINE, None, None, [U, A, A, U, U]),
        # A bias lifts the middle above the line between the ends.
        (LINE, [0.0, 0.0, 0.0, 1.0, 0.0], None, [U, A, A, A, U]),
        ([*CORNERS, CORNERS[0], [0.0, 0.0], [0.0, 0.0]], None, None, [T, A, A, T, U, U]),
        # A larger bias separates the twins.
        ([*CORNERS, CORNERS[0]], [0.0, 0.0, 0.0, 0.1], None, [U, A, A, A]),
        ([[0.0], [-0.0], [1.0]], None, None, [T, T, A]),
        ([[0.0], [1.0], [2.0]], [0.0, 0.0, -math.inf], None, [A, A, U]),
        ([[1.0, 1.0]], None, None, [A]),
        ([[1.0, 1.0]] * 3, None, None, [T, T, T]),
        # The best state of a box, (-1, -1, 1) times its bound, leads by 2 · bound − 5.
        (torch.eye(3).tolist(), [0.0, 0.0, -5.0], None, [A, A, A]),
        (torch.eye(3).tolist(), [0.0, 0.0, -5.0], Box(2.6), [A, A, A]),
        (torch.eye(3).tolist(), [0.0, 0.0, -5.0], Box(2.4), [A, A, U]),
    ],
)
def test_known_heads_have_known_verdicts(weight, bias, states, want):
    bias = None if bias is None else torch.tensor(bias)
    found = decide_tokens(torch.tensor(weight), bias, states)
    assert [token.verdict for token in found] == want
    for token in found:
        if token.verdict is T:
            assert token.group == tuple(i for i, verdict in enumerate(want) if verdict is T)


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(2, 8), st.sampled_from([None, Box(1.0)]))
def test_small_heads_agree_with_one_program_over_all_tokens(data, size, vocab_size, states):
    numbers = st.lists(st.integers(-2, 2), min_size=vocab_size, max_size=vocab_size)
    weight = torch.tensor([data.draw(numbers) for _ in range(size)], dtype=torch.float64).T
    bias = torch.tensor(data.draw(numbers), dtype=torch.float64)
    bounds = (None, None) if states is None else (-1, 1)
    for token in decide_tokens(weight, bias, states):
        lead = best_lead(weight.numpy(), bias.numpy(), token.token, bounds)
        assert (token.verdict is A) == (lead > 1e-7)
        assert token.verdict is not OPEN


def test_every_token_of_a_head_like_a_trained_one_is_decided():
    weight, bias = (tensor.float() for tensor in like_trained(400, 12))
    found = decide_tokens(weight, bias)
    counts, weight, bias = Counter(t.verdict for t in found), weight.double(), bias.double()
    assert set(counts) == {A, U} and min(counts.values()) > 20
    for token in found:
        proof = token.certificate
        if isinstance(proof, State):
            assert (weight @ proof.hidden + bias).argmax() == token.token
        else:
            mean = proof.weights @ weight[proof.tokens]
            torch.testing.assert_close(mean, weight[token.token], atol=1e-12, rtol=0)
            assert proof.is_exact
            assert proof.weights @ bias[proof.tokens] - bias[token.token] >= -1e-12


def test_a_sample_has_the_verdicts_of_the_whole_and_leaves_the_others_untried():
    weight, bias = like_trained(60, 4)
    want, sample = verdicts(weight, bias), decide_tokens(weight, bias, num_sampled=25)
    tried = [token for token in sample if not token.is_untried]
    assert len(tried) == 25 and {token.verdict for token in tried} == {A, U}
    assert all(token.verdict is want[token.token] for token in tried)
    assert all(token.certificate is None for token in sample if token.is_untried)
    assert verdicts(torch.ones(3, 2), num_sampled=2) == [T] * 3


def test_the_search_finds_the_longest_vector_at_once_and_no_mean_of_others(monkeypatch):
    inner = torch.from_numpy(np.random.default_rng(0).uniform(-0.3, 0.3, size=(20, 2)))
    weight = torch.cat([torch.tensor(CORNERS, dtype=torch.float64), inner])
    for sweeps in (1, module.NUM_SWEEPS):
        monkeypatch.setattr(module, "NUM_SWEEPS", sweeps)
        head = build_problem(weight, weight.new_zeros(23), Everywhere())
        margin, hidden, _ = module.search_states(head, lambda fraction, text: None)
        longest = (weight - weight.mean(0)).norm(dim=1).argmax()
        assert margin[longest] > 0 and (weight @ hidden[longest]).argmax() == longest
    assert (margin > 0).tolist() == [True] * 3 + [False] * 20
    for token in decide_tokens(weight)[3:]:
        assert isinstance(token.certificate, Proof) and token.certificate.is_exact


def test_vectors_of_one_length_need_no_program(monkeypatch):
    monkeypatch.setattr(certificate, "solve", None)
    angle = torch.arange(50, dtype=torch.float64)
    assert verdicts(torch.stack([angle.cos(), angle.sin()], dim=1)) == [A] * 50


@pytest.fixture
def ticks(monkeypatch):
    """A clock that is a second later whenever somebody looks at it."""
    monkeypatch.setattr(problem, "monotonic", itertools.count().__next__)


def test_what_takes_no_time_is_decided_without_it():
    weight, shown = torch.tensor([[0.0], [1.0], [1.0], [2.0]]), []
    bias = torch.tensor([0.0, 0.0, 1.0, -math.inf])
    found = decide_tokens(weight, bias, seconds=0, on_progress=lambda *at: shown.append(at))
    assert [token.verdict for token in found] == [OPEN, U, OPEN, U]
    assert [token.is_untried for token in found] == [True, False, True, False]
    assert shown[-1] == (1.0, "time is up: 2 tokens are open")
    assert verdicts(torch.ones(1, 2), seconds=0) == [A]


def test_whenever_time_ends_verdicts_are_those_of_unlimited_time(ticks, monkeypatch):
    # Several looks in each sweep, several blocks of tokens that move.
    monkeypatch.setattr(problem, "BLOCK", 40 * 10)
    monkeypatch.setattr(module, "NUM_MOVING", 10)
    weight, counts = gaussian(40, 2), []
    want = verdicts(weight)
    for seconds in (1, 3, 8, 50, 130, 150, 400):
        found = decide_tokens(weight, seconds=seconds)
        for token, verdict in zip(found, want, strict=True):
            assert token.is_untried == (token.verdict is OPEN)
            assert token.is_untried or token.verdict is verdict
        counts.append(sum(token.is_untried for token in found))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 20 and len(set(counts)) > 4 and counts[-1] == 0


def test_a_program_ends_in_time(ticks):
    weight, rivals = gaussian(40, 2), torch.arange(1, 3)
    small = build_problem(weight, weight.new_zeros(40), Everywhere())
    with pytest.raises(OutOfTime):
        decide_token(small, 0, rivals, Deadline(2))
    assert decide_token(small, 0, rivals, Deadline(100)) is not None
    # Without a limit the solver takes half a second.
    weight = gaussian(2000, 60)
    large = build_problem(weight, weight.new_zeros(2000), Everywhere())
    with pytest.raises(OutOfTime):
        solve(large, 0, torch.arange(1, 2000), seconds=1e-3)


def test_a_token_too_close_to_call_is_not_untried_though_time_ends_with_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(problem, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "decide_token", lambda *_: now.__setitem__(0, 2.0))
    found = decide_tokens(gaussian(40, 2), seconds=1)
    num_undecided = sum(token.verdict is OPEN for token in found)
    assert sum(token.is_untried for token in found) == num_undecided - 1 > 1


def test_progress_grows_to_one():
    fractions = []
    decide_tokens(gaussian(100, 2), on_progress=lambda fraction, _: fractions.append(fraction))
    assert fractions == sorted(fractions) and fractions[-1] == 1


def test_a_missing_solver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[cli\]'"):
        decide_tokens(torch.eye(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide_tokens(torch.zeros(3)), r"weight must be a finite matrix, got \(3,\)"),
        (lambda: decide_tokens(torch.full((2, 2), math.nan)), "weight must be a finite matrix"),
        (lambda: decide_tokens(torch.eye(2), torch.zeros(3)), r"must have shape \(2,\), got \(3,"),
        (lambda: decide_tokens(torch.eye(1), torch.tensor([math.inf])), "must be finite or −inf"),
        (lambda: decide_tokens(torch.eye(1), torch.tensor([-math.inf])), "at least one token"),
        (lambda: decide_tokens(torch.eye(2), seconds=math.nan), "seconds must be at least 0"),
        (lambda: Box(math.inf), "bound must be positive and finite, got inf"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
