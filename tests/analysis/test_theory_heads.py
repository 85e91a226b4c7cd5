"""The statements of docs/mathematics.md about heads, which have logarithms: with floats."""

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis.theory import (
    minimum_rank_over_shifts_and_biases,
    nearby_softmax,
    rank,
    smallest_exact_softmax,
    symmetric_mixture,
)
from highrank.data import factorised, senses
from highrank.heads import MixtureOfContexts, Softmax


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
