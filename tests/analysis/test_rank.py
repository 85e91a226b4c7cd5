"""Numerical ranks of matrices whose rank is known."""

import json
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis.log_probs import head_log_probs, matrix_log_probs
from highrank.analysis.rank import (
    MEASURES,
    effective_rank,
    entropy_rank,
    log_prob_rank,
    measure_ranks,
    noise_floor,
    numerical_rank,
    numerical_rank_float32,
    numerical_rank_float64,
    press_threshold,
    rank_bound,
    stable_rank,
    unknown_reason,
)
from highrank.analysis.svd import head_singular_values, singular_values
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax

EPS32, EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps
HEADS = {
    "softmax": lambda: Softmax(20, 100, 10),
    "moc": lambda: MixtureOfContexts(20, 100, 4, 10),
    "mos": lambda: MixtureOfSoftmaxes(20, 100, 4, 10),
}


def product(rank, rows=90, columns=60):
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, columns, generator=generator, dtype=torch.float64)


def spectrum_of(matrix, precision=None):
    return singular_values(matrix_log_probs(matrix, precision))[-1]


def ranks(spectrum):
    """With the tolerance of float32 and of float64."""
    return numerical_rank_float32(spectrum), numerical_rank_float64(spectrum)


def make(kind, dtype=torch.float32):
    head = HEADS[kind]()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head.to(dtype)


@pytest.mark.parametrize("rank", [1, 2, 17, 59, 60])
def test_the_rank_of_a_product_is_its_inner_size(rank):
    matrix = product(rank)
    found, values = log_prob_rank(matrix)
    assert found == rank == np.linalg.matrix_rank(matrix.numpy())
    assert ranks(spectrum_of(matrix)) == (rank, rank)
    np.testing.assert_allclose(values, np.linalg.svd(matrix, compute_uv=False), atol=1e-10)


def test_the_threshold_is_that_of_numerical_recipes():
    want = 0.5 * np.sqrt(151) * 7.0 * EPS64
    assert press_threshold(7.0, (90, 60), EPS64) == pytest.approx(want)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.zeros(3, 3), r"log_prob must be float64, got torch\.float32"),
        (torch.zeros(4).double(), "must be a finite matrix, got"),
        (torch.zeros(0, 3).double(), "must be a finite matrix, got"),
        (torch.tensor([[0.0, -torch.inf]]).double(), "must be a finite matrix"),
    ],
)
def test_what_is_no_float64_matrix_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        log_prob_rank(matrix)


@pytest.mark.parametrize("rank", [1, 20, 50])
def test_the_trap_of_the_wrong_epsilon_is_avoided_when_the_precision_is_known(rank):
    """Float32 numbers judged with the epsilon of float64 look like a matrix of full rank."""
    matrix = product(rank).float()
    spectrum = spectrum_of(matrix)
    assert numerical_rank(spectrum.values, (90, 60), EPS64) == 60
    assert ranks(spectrum) == ranks(spectrum_of(matrix.double(), torch.float32)) == (rank, None)
    want = "the numerical rank of float64 needs the head recomputed in float64"
    assert unknown_reason(spectrum) == want


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_recomputed_in_float64_have_the_rank_of_the_theory(kind, dtype):
    head, hidden = make(kind, dtype), torch.randn(150, 20).to(dtype)
    (spectrum,) = singular_values(head_log_probs(head, hidden))
    if kind == "mos":
        assert numerical_rank_float64(spectrum) == 100 and numerical_rank_float32(spectrum) > 50
    else:
        assert ranks(spectrum) == ranks(head_singular_values(head, hidden)[0]) == (12, 12)
        assert head.rank_bound == rank_bound(10, has_bias=True).value == 12
    (rough,) = singular_values(head_log_probs(head, hidden, torch.float32))
    assert abs(numerical_rank_float32(rough) - numerical_rank_float32(spectrum)) <= 1


def test_numbers_computed_in_bfloat16_have_a_noise_floor_and_no_rank():
    head, hidden = make("softmax", torch.bfloat16), torch.randn(150, 20).bfloat16()
    spectrum = spectrum_of(head.log_prob(hidden).detach(), torch.bfloat16)
    assert ranks(spectrum) == (None, None)
    largest = spectrum.values[0].item()
    assert noise_floor(spectrum) == pytest.approx(0.5 * 251**0.5 * largest * 2**-7)
    assert "were computed in bfloat16" in unknown_reason(spectrum)
    # What it would be taken for: the noise of the logits has full rank.
    assert numerical_rank(spectrum.values, (150, 100), EPS32) == 100


def test_the_fast_method_knows_the_rank_of_float32_only():
    (spectrum,) = singular_values(head_log_probs(make("moc"), torch.randn(150, 20)), "fast")
    assert ranks(spectrum) == (12, None)
    assert unknown_reason(spectrum) == "the fast method hides what is below its own round-off"


def test_a_bias_of_zeros_adds_no_rank():
    head = make("softmax")
    torch.nn.init.zeros_(head.bias)
    assert ranks(head_singular_values(head, torch.randn(150, 20))[0])[1] == 11


def test_measures_of_a_float64_matrix_are_all_known():
    spectrum = spectrum_of(product(7))
    found = measure_ranks(spectrum)
    assert list(found) == [measure.key for measure in MEASURES]
    assert found["numerical_rank_float32"] == found["numerical_rank_float64"] == 7
    assert found["effective_rank_1e-3"] == effective_rank(spectrum.values, 1e-3)
    assert found["stable_rank"] == stable_rank(spectrum.values)
    assert found["entropy_rank"] == entropy_rank(spectrum.values)
    assert unknown_reason(spectrum) == "" and spectrum.shape == (90, 60)
    json.dumps(found)


values = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30).map(
    lambda numbers: torch.tensor(sorted(numbers, reverse=True), dtype=torch.float64)
)


@given(values, st.sampled_from([0.0, 1e-5, 1e-3, 1e-2, 0.3]))
def test_an_effective_rank_is_the_shortest_sum_that_carries_enough(singular, epsilon):
    squares = [Fraction(value) ** 2 for value in singular.tolist()]
    wanted = (1 - Fraction(epsilon)) * sum(squares)
    enough = [k for k in range(len(squares) + 1) if sum(squares[:k]) >= wanted]
    assert effective_rank(singular, epsilon) == enough[0]


@given(values)
def test_stable_and_entropy_rank_are_their_definitions(singular):
    numbers = singular.numpy()
    assert stable_rank(singular) == pytest.approx((numbers**2).sum() / numbers[0] ** 2)
    share = numbers / numbers.sum()
    assert entropy_rank(singular) == pytest.approx(np.exp(scipy.stats.entropy(share)))


def test_zeros_have_no_rank_in_any_sense():
    zeros = torch.zeros(8).double()
    assert (effective_rank(zeros, 1e-5), stable_rank(zeros), entropy_rank(zeros)) == (0, 0, 0)
    assert log_prob_rank(torch.zeros(5, 4, dtype=torch.float64))[0] == 0


def test_bounds_are_those_of_the_heads_and_say_why_there_is_none():
    for bias in (True, False):
        assert rank_bound(4, has_bias=bias).value == Softmax(6, 9, 4, bias=bias).rank_bound
    for options, reason in (
        ({"num_softmaxes": 3}, "3 softmaxes are summed inside the logarithm"),
        ({"softcap": 30.0}, "logits are soft-capped"),
        ({"has_map": True}, "each logit is mapped"),
    ):
        found = rank_bound(4, has_bias=True, **options)
        assert found.value is None and reason in found.reason
    logits = 30 * torch.randn(90, 4).double() @ torch.randn(4, 60).double()
    assert ranks(spectrum_of(logits.log_softmax(-1)))[1] == 5
    assert ranks(spectrum_of((30 * torch.tanh(logits / 30)).log_softmax(-1)))[1] == 60
