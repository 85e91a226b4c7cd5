"""Every statement of docs/mathematics.md.

Exact where it is about ranks or equal softmaxes; with floats about heads, which have logarithms.
"""

import inspect
import re
from fractions import Fraction
from itertools import combinations, permutations
from math import prod
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis import theory
from highrank.analysis.theory import (
    base_two_softmax,
    in_shift_family,
    minimum_rank_over_shifts,
    minimum_rank_over_shifts_and_biases,
    mixed_context,
    nearby_softmax,
    rank,
    rational,
    row_shift,
    smallest_exact_softmax,
    symmetric_mixture,
    wrong_contexts,
)
from highrank.data import factorised, senses
from highrank.heads import MixtureOfContexts, Softmax

ROOT = Path(__file__).parents[2]

SIZES = st.integers(1, 4)
WHOLE = [0, 1, -1, 2, -2]
FRACTIONS = WHOLE + [Fraction(p, q) for p, q in [(1, 2), (-1, 2), (1, 3), (-2, 3), (3, 2)]]
MINIMA = pytest.mark.parametrize(
    "minimum", [minimum_rank_over_shifts, minimum_rank_over_shifts_and_biases]
)


@st.composite
def tables(draw, *shape, of=FRACTIONS):
    """Arrays of the numbers listed in `of`."""
    size = prod(shape)
    numbers = [of[byte % len(of)] for byte in draw(st.binary(min_size=size, max_size=size))]
    return rational(np.array(numbers, dtype=object).reshape(shape))


@st.composite
def low_ranks(draw, of=FRACTIONS):
    """Products of thin matrices, with or without a shift and a bias on top."""
    C, V, d = draw(SIZES), draw(SIZES), draw(st.integers(0, 3))
    shift, bias = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    matrix = rational(draw(tables(C, d, of=of)) @ draw(tables(V, d, of=of)).T)
    return matrix + shift * draw(tables(C, 1, of=of)) + bias * draw(tables(V, of=of))


@st.composite
def layers(draw, of=FRACTIONS):
    """hidden (C, d), weight (V, d), bias (V,) and any shift (C,)."""
    C, V, d = draw(SIZES), draw(SIZES), draw(st.integers(1, 3))
    return [draw(tables(*shape, of=of)) for shape in [(C, d), (V, d), (V,), (C,)]]


@st.composite
def pairs_of_logits(draw):
    """Whole numbers, and the same ones shifted, with at most one number changed afterwards."""
    logits = draw(low_ranks(of=WHOLE))
    other = row_shift(logits, draw(tables(len(logits), of=WHOLE)))
    row, column = (draw(st.integers(0, size - 1)) for size in logits.shape)
    other[row, column] += draw(st.sampled_from([0, 0, 1, -3]))
    return other, logits


def rank_by_minors(matrix):
    """The size of the largest square part whose determinant, by Leibniz' formula, is not zero."""

    def determinant(part):
        return sum(
            (-1) ** sum(a > b for a, b in combinations(order, 2))
            * prod(part[row, column] for row, column in enumerate(order))
            for order in permutations(range(len(part)))
        )

    for size in range(min(matrix.shape), 0, -1):
        for rows in combinations(range(matrix.shape[0]), size):
            for columns in combinations(range(matrix.shape[1]), size):
                if determinant(matrix[np.ix_(rows, columns)]) != 0:
                    return size
    return 0


def to_float(matrix):
    return torch.from_numpy(matrix.astype(np.float64))


@given(low_ranks())
def test_elimination_finds_the_rank_that_minors_define(matrix):
    assert rank(matrix) == rank_by_minors(matrix)


@given(low_ranks(of=WHOLE))
def test_a_softmax_in_base_two_is_a_softmax(logits):
    prob = base_two_softmax(logits)
    assert (prob.sum(1) == 1).all()
    want = scipy.special.softmax(to_float(logits).numpy() * np.log(2), axis=1)
    np.testing.assert_allclose(prob.astype(np.float64), want, rtol=1e-13)


@given(pairs_of_logits())
def test_property_1_the_family_is_all_matrices_of_equal_softmax(pair):
    other, logits = pair
    is_equal = (base_two_softmax(other) == base_two_softmax(logits)).all()
    assert in_shift_family(other, logits) == is_equal


@given(low_ranks(), st.data())
def test_property_2_ranks_in_a_family_differ_by_at_most_one(matrix, data):
    one, two = (row_shift(matrix, data.draw(tables(len(matrix)))) for _ in range(2))
    assert abs(rank(one) - rank(two)) <= 1


@given(low_ranks(), st.data())
def test_a_rank_in_the_family_is_the_least_or_one_more_if_the_shift_is_new(matrix, data):
    least, _, _, centred = minimum_rank_over_shifts(matrix)
    shift = data.draw(tables(len(matrix)))
    is_new = rank(np.column_stack([centred, shift])) > rank(centred)
    assert rank(row_shift(centred, shift)) == least + is_new


@given(low_ranks(), st.data())
def test_no_shift_has_a_lower_rank_than_the_minimum_and_its_own_shift_attains_it(matrix, data):
    least, shift, bias, centred = minimum_rank_over_shifts(matrix)
    assert rank(row_shift(matrix, shift)) == least
    assert (row_shift(matrix, shift) == centred).all() and (bias == 0).all()
    assert (centred.sum(1) == 0).all()
    # Only shifts in the column space can lower the rank: try those as well as any.
    inside = -matrix @ data.draw(tables(matrix.shape[1]))
    for other in (inside, data.draw(tables(len(matrix)))):
        assert rank(row_shift(matrix, other)) >= least


@given(low_ranks())
def test_the_minimum_is_one_less_exactly_if_ones_are_in_the_row_space(matrix):
    ones = rational(np.ones((1, matrix.shape[1]), dtype=int))
    has_ones = rank(np.vstack([matrix, ones])) == rank(matrix)
    assert minimum_rank_over_shifts(matrix).rank == rank(matrix) - has_ones


@given(layers(of=WHOLE), st.sampled_from([0, 1]))
def test_lemma_1_logits_in_the_family_are_exact_in_every_context(layer, change):
    hidden, weight, _, shift = layer
    logits = hidden @ weight.T
    other = row_shift(logits, shift)
    other[0, 0] += change
    is_wrong = (base_two_softmax(logits) != base_two_softmax(other)).any(1)
    assert wrong_contexts(logits, other) == np.flatnonzero(is_wrong).tolist()


@pytest.mark.parametrize("bias", [False, True])
@given(matrix=low_ranks())
def test_proposition_1_the_least_rank_is_a_size_that_suffices(bias, matrix):
    layer = smallest_exact_softmax(matrix, bias=bias)
    minimum = minimum_rank_over_shifts_and_biases if bias else minimum_rank_over_shifts
    size = minimum(matrix).rank
    assert layer.hidden.shape == (len(matrix), size)
    assert layer.weight.shape == (matrix.shape[1], size)
    assert in_shift_family(layer.logits, matrix)
    assert bias or (layer.bias == 0).all()


@given(layers())
def test_proposition_1_no_smaller_size_suffices(layer):
    hidden, weight, bias, shift = layer
    said = row_shift(hidden @ weight.T, shift)
    assert minimum_rank_over_shifts(said).rank <= hidden.shape[1]
    assert minimum_rank_over_shifts_and_biases(said + bias).rank <= hidden.shape[1]


@given(st.data(), st.integers(1, 2), st.integers(2, 3))
def test_corollary_1_a_size_below_the_rank_minus_one_is_wrong_in_some_context(data, d, gap):
    size = d + gap
    lower, upper, more = (data.draw(tables(size, size)) for _ in range(3))
    one = rational(np.eye(size, dtype=int))
    log_prob = np.hstack([(np.tril(lower, -1) + one) @ (np.triu(upper, 1) + one), more])
    assert rank(log_prob) == size
    hidden, weight = data.draw(tables(size, d)), data.draw(tables(2 * size, d))
    assert wrong_contexts(hidden @ weight.T, log_prob)
    assert gap == 2 or wrong_contexts(hidden @ weight.T + data.draw(tables(2 * size)), log_prob)


@given(low_ranks(), st.data())
def test_no_shift_and_bias_have_a_lower_rank_than_their_minimum(matrix, data):
    least, shift, bias, centred = minimum_rank_over_shifts_and_biases(matrix)
    assert rank(row_shift(matrix, shift) - bias) == least
    assert (row_shift(matrix, shift) - bias == centred).all()
    assert (centred.sum(0) == 0).all() and (centred.sum(1) == 0).all()
    for _ in range(3):
        x, y = data.draw(tables(matrix.shape[1])), data.draw(tables(len(matrix)))
        other = row_shift(matrix, -matrix @ x)
        assert rank(other - y @ other) >= least
        assert rank(row_shift(matrix, y) - x) >= least


@given(low_ranks())
def test_a_bias_saves_one_more_exactly_if_ones_are_in_the_centred_column_space(matrix):
    least, _, _, centred = minimum_rank_over_shifts(matrix)
    ones = rational(np.ones((len(matrix), 1), dtype=int))
    has_ones = rank(np.hstack([centred, ones])) == rank(centred)
    assert minimum_rank_over_shifts_and_biases(matrix).rank == least - has_ones


def test_a_bias_can_save_two():
    matrix = rational([[0, 1], [1, 2]])
    assert rank(matrix) == 2
    assert minimum_rank_over_shifts(matrix).rank == 1
    assert minimum_rank_over_shifts_and_biases(matrix).rank == 0


@given(low_ranks())
def test_a_size_of_all_words_but_one_always_suffices(matrix):
    C, V = matrix.shape
    assert minimum_rank_over_shifts(matrix).rank <= min(C, V - 1)
    assert minimum_rank_over_shifts_and_biases(matrix).rank <= min(C - 1, V - 1)


@given(layers())
def test_a_softmax_has_at_most_its_size_plus_normaliser_plus_bias(layer):
    hidden, weight, bias, log_normaliser = layer
    d = hidden.shape[1]
    assert rank(row_shift(hidden @ weight.T, -log_normaliser)) <= d + 1
    assert rank(row_shift(hidden @ weight.T + bias, -log_normaliser)) <= d + 2


@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.integers(1, 2))
def test_a_mixture_of_contexts_is_a_softmax_of_the_mixed_context(data, C, V, K, d):
    share = data.draw(tables(C, K, of=[1, 2, 3, 4]))
    prior = share / share.sum(1)[:, None]
    context, weight = data.draw(tables(C, K, d)), data.draw(tables(V, d))
    bias = data.draw(tables(V))
    mixed_logits = sum(prior[:, k, None] * (context[:, k] @ weight.T + bias) for k in range(K))
    assert (mixed_logits == mixed_context(prior, context) @ weight.T + bias).all()
    assert minimum_rank_over_shifts_and_biases(mixed_logits).rank <= d


@MINIMA
@given(matrix=low_ranks())
def test_floats_lead_to_the_same_minimum_as_fractions(minimum, matrix):
    want, got = minimum(matrix), minimum(to_float(matrix))
    assert got.rank == want.rank
    for name in ("shift", "bias", "matrix"):
        torch.testing.assert_close(getattr(got, name), to_float(getattr(want, name)))


@given(pairs_of_logits())
def test_floats_lead_to_the_same_wrong_contexts_as_fractions(pair):
    assert wrong_contexts(*map(to_float, pair)) == wrong_contexts(*pair)


ZEROS = torch.zeros(2, 3).double()
NO_MATRIX = r"matrix must be \(C, V\), a finite float64 tensor"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank(torch.zeros(2, 3)), NO_MATRIX),
        (lambda: rank(torch.zeros(3).double()), NO_MATRIX),
        (lambda: rank(torch.tensor([[0.0, -torch.inf]]).double()), NO_MATRIX),
        (lambda: rank(np.ones((2, 3))), NO_MATRIX),
        (lambda: rank(rational([[]])), NO_MATRIX),
        (lambda: base_two_softmax(rational([["1/2", 0]])), "must be whole numbers, got 1/2"),
        (lambda: row_shift(ZEROS, ZEROS[0]), r"shift must be \(2,\), got \(3,\)"),
        (lambda: wrong_contexts(ZEROS.T, ZEROS), r"logits must be \(2, 3\), got \(3, 2\)"),
        (lambda: nearby_softmax(ZEROS, -1), "size must be at least 0, got -1"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("bias", [False, True])
def test_the_bound_of_a_softmax_is_reached_and_the_least_size_is_its_own(bias):
    head = Softmax(3, 20, bias=bias).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    log_prob = head.log_prob(torch.randn(30, 3).double()).detach()
    assert rank(log_prob) == head.rank_bound == (5 if bias else 4)
    assert len(smallest_exact_softmax(log_prob, bias=bias).weight.T) == 3


@given(st.lists(st.integers(1, 40), min_size=5, max_size=7, unique=True), st.integers(0, 99))
def test_the_symmetric_mixture_is_a_ratio_of_hyperbolic_cosines(numbers, seed):
    w = torch.tensor(numbers).double() / 10
    t = torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 3, size=6))
    cosh = np.cosh(np.outer(t, torch.cat([w, -w])))
    log_prob = symmetric_mixture(w).log_prob(t[:, None]).detach()
    np.testing.assert_allclose(log_prob, np.log(cosh / cosh.sum(1, keepdims=True)), atol=1e-12)


@pytest.mark.parametrize("num_words", [10, 12, 14])
@given(scale=st.floats(1.0, 2.0))
def test_a_mixture_of_two_softmaxes_of_size_one_escapes_the_bound(num_words, scale):
    m = num_words // 2
    number = torch.arange(1, m + 1).double()
    head = symmetric_mixture(number / m * scale)
    log_prob = head.log_prob(2 * number[:, None] / m * scale).detach()
    assert rank(log_prob) >= m - 1 > head.embedding_size + 2
    assert minimum_rank_over_shifts_and_biases(log_prob).rank >= m - 2 > head.embedding_size


def test_the_same_mixture_of_contexts_says_that_all_words_are_equal():
    head = symmetric_mixture(torch.arange(1, 6).double())
    contexts = MixtureOfContexts(1, 10, 2, 1, activation="identity", bias=False).double()
    contexts.load_state_dict(head.state_dict())
    log_prob = contexts.log_prob(torch.randn(4, 1).double())
    torch.testing.assert_close(log_prob.exp(), torch.full((4, 10), 0.1).double())


@given(st.integers(0, 999), st.integers(0, 8), st.sampled_from([0.01, 0.3, 2.0, 20.0]))
def test_a_softmax_is_near_if_the_singular_values_left_out_are_small(seed, size, scale):
    logits = np.random.default_rng(seed).standard_normal((9, 7)) * scale
    log_prob = torch.from_numpy(scipy.special.log_softmax(logits, axis=1))
    layer, bound = nearby_softmax(log_prob, size)
    assert layer.hidden.shape[1] == layer.weight.shape[1] == min(size, 7)
    log_q = layer.logits.log_softmax(1)
    divergence = F.kl_div(log_q, log_prob, reduction="none", log_target=True).sum(1)
    assert divergence.max() <= bound + 1e-12
    assert size < 6 or bound < 1e-20


def test_a_rank_above_the_bound_can_be_worth_less_than_a_millionth_of_a_nat():
    number = torch.arange(1, 6).double() / 5
    head = symmetric_mixture(number / 2)
    log_prob = head.log_prob(number[:, None]).detach()
    assert rank(log_prob) > head.embedding_size + 2
    assert nearby_softmax(log_prob, head.embedding_size)[1] < 1e-6


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("language", [factorised(rank=10), senses()], ids=["factorised", "senses"])
def test_the_smallest_exact_softmax_of_a_language_says_it_as_a_head(language, bias):
    log_prob = torch.from_numpy(language.log_prob)
    layer = smallest_exact_softmax(log_prob, bias=bias)
    size = layer.weight.shape[1]
    assert size == (9 if rank(log_prob) == 10 else 199)
    head = Softmax(size, len(layer.weight)).double()
    head.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    torch.testing.assert_close(head.log_prob(layer.hidden), log_prob)


def test_the_document_names_functions_and_tests_that_exist():
    text = (ROOT / "docs/mathematics.md").read_text(encoding="utf-8")
    here = Path(__file__).read_text(encoding="utf-8")
    known = set(re.findall(r"^def (test_\w+)", here, flags=re.M))
    tests = set(re.findall(r"`(test_\w+)`", text))
    functions = set(re.findall(r"\[`(\w+)`\]\([^)]*theory\.py\)", text))
    assert tests and tests <= known
    public = inspect.getmembers(theory, inspect.isfunction)
    assert functions == {
        name for name, f in public if f.__module__ == theory.__name__ and name[0] != "_"
    }
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
