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


def of_rank(rank, rows=90, columns=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, columns, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rank", [1, 2, 17, 59, 60])
def test_the_rank_of_a_product_is_its_inner_size(rank):
    matrix = of_rank(rank)
    found, singular_values = log_prob_rank(matrix)
    assert found == rank == np.linalg.matrix_rank(matrix.numpy())
    np.testing.assert_allclose(
        singular_values, np.linalg.svd(matrix.numpy(), compute_uv=False), atol=1e-10
    )


def test_the_threshold_is_that_of_numerical_recipes():
    eps = np.finfo(np.float64).eps
    assert press_threshold(7.0, (90, 60), eps) == pytest.approx(0.5 * np.sqrt(151) * 7.0 * eps)


def test_float32_numbers_judged_with_the_epsilon_of_float64_look_full_rank():
    matrix = of_rank(20).float().double()
    singular_values = torch.linalg.svdvals(matrix)
    wrong, right = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps
    assert numerical_rank(singular_values, (90, 60), wrong) == 60
    assert numerical_rank(singular_values, (90, 60), right) == 20


def test_float32_log_probabilities_are_refused():
    with pytest.raises(ValueError, match=r"log_prob must be float64, got torch\.float32"):
        log_prob_rank(torch.zeros(3, 3))


@pytest.mark.parametrize("shape", [(0, 3), (4,), (2, 3, 4)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match="must be a finite matrix, got"):
        log_prob_rank(torch.zeros(shape, dtype=torch.float64))


def test_impossible_words_have_no_rank():
    matrix = of_rank(3)
    matrix[0, 0] = -torch.inf
    with pytest.raises(ValueError, match="must be a finite matrix"):
        log_prob_rank(matrix)


def test_a_matrix_of_zeros_has_rank_zero():
    assert log_prob_rank(torch.zeros(5, 4, dtype=torch.float64))[0] == 0


def spectrum_of(matrix, method="stable", precision=None):
    return singular_values(matrix_log_probs(matrix, precision), method)[-1]


def head_of(kind, dtype=torch.float32):
    if kind == "softmax":
        head = Softmax(20, 100, 10)
    else:
        head = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}[kind](20, 100, 4, 10)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head.to(dtype)


@pytest.mark.parametrize("rank", [1, 2, 3, 10, 50, 100, 150, 199, 200])
def test_known_ranks_are_found_with_both_tolerances(rank):
    spectrum = spectrum_of(of_rank(rank, 260, 220))
    assert numerical_rank_float64(spectrum) == rank == numerical_rank_float32(spectrum)


@pytest.mark.parametrize("rank", [1, 20, 50])
def test_the_trap_of_the_wrong_epsilon_is_avoided_when_the_precision_is_known(rank):
    matrix = of_rank(rank).float()
    spectrum = spectrum_of(matrix)
    assert numerical_rank(spectrum.values, (90, 60), torch.finfo(torch.float64).eps) == 60
    assert numerical_rank_float32(spectrum) == rank
    assert numerical_rank_float64(spectrum) is None
    assert numerical_rank_float32(spectrum_of(matrix.double(), precision=torch.float32)) == rank


@pytest.mark.parametrize("kind", ["softmax", "moc", "mos"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_recomputed_in_float64_have_the_rank_of_the_theory(kind, dtype):
    head, hidden = head_of(kind, dtype), torch.randn(150, 20).to(dtype)
    (spectrum,) = singular_values(head_log_probs(head, hidden))
    if kind == "mos":
        assert numerical_rank_float64(spectrum) == 100 and numerical_rank_float32(spectrum) > 50
    else:
        (linear,) = head_singular_values(head, hidden)
        assert (
            numerical_rank_float64(spectrum)
            == numerical_rank_float64(linear)
            == 12
            == head.rank_bound
        )
        assert numerical_rank_float32(spectrum) == numerical_rank_float32(linear) == 12


@pytest.mark.parametrize("kind", ["softmax", "moc", "mos"])
def test_the_numerical_rank_is_the_same_from_float32_and_from_float64(kind):
    head, hidden = head_of(kind), torch.randn(150, 20)
    sources = [head_log_probs(head, hidden, dtype) for dtype in (torch.float32, torch.float64)]
    found = [numerical_rank_float32(singular_values(source)[0]) for source in sources]
    assert abs(found[0] - found[1]) <= 1


def test_numbers_computed_in_bfloat16_have_a_noise_floor_and_no_rank():
    head, hidden = head_of("softmax", torch.bfloat16), torch.randn(150, 20).bfloat16()
    log_prob = head.log_prob(hidden).detach()
    assert log_prob.dtype == torch.float32
    spectrum = spectrum_of(log_prob, precision=torch.bfloat16)
    assert numerical_rank_float32(spectrum) is numerical_rank_float64(spectrum) is None
    largest = spectrum.values[0].item()
    assert noise_floor(spectrum) == pytest.approx(0.5 * 251**0.5 * largest * 2**-7)
    assert "were computed in bfloat16" in unknown_reason(spectrum)
    # What it would be taken for: the noise of the logits has full rank.
    assert numerical_rank(spectrum.values, (150, 100), torch.finfo(torch.float32).eps) == 100


def test_the_fast_method_knows_the_rank_of_float32_only():
    head, hidden = head_of("moc"), torch.randn(150, 20)
    spectrum = singular_values(head_log_probs(head, hidden), "fast")[-1]
    assert numerical_rank_float32(spectrum) == rank_bound(10, has_bias=True).value == 12
    assert numerical_rank_float64(spectrum) is None
    assert unknown_reason(spectrum) == "the fast method hides what is below its own round-off"


def test_a_bias_of_zeros_adds_no_rank():
    head = head_of("softmax")
    torch.nn.init.zeros_(head.bias)
    (linear,) = head_singular_values(head, torch.randn(150, 20))
    assert numerical_rank_float64(linear) == 11


def test_measures_of_a_float64_matrix_are_all_known():
    spectrum = spectrum_of(of_rank(7))
    found = measure_ranks(spectrum)
    assert list(found) == [measure.key for measure in MEASURES]
    assert found["numerical_rank_float32"] == found["numerical_rank_float64"] == 7
    assert found["effective_rank_1e-3"] == effective_rank(spectrum.values, 1e-3)
    assert found["stable_rank"] == stable_rank(spectrum.values)
    assert found["entropy_rank"] == entropy_rank(spectrum.values)
    assert unknown_reason(spectrum) == ""
    assert (spectrum.shape, spectrum.precision) == ((90, 60), torch.float64)
    assert spectrum.method == "stable"
    json.dumps(found)


def test_float32_numbers_lack_only_the_rank_of_float64():
    spectrum = spectrum_of(of_rank(7).float())
    assert (numerical_rank_float32(spectrum), numerical_rank_float64(spectrum)) == (7, None)
    want = "the numerical rank of float64 needs the head recomputed in float64"
    assert unknown_reason(spectrum) == want


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


def test_equal_singular_values_have_full_rank_in_every_sense_and_zeros_have_none():
    flat, zeros = torch.ones(8).double(), torch.zeros(8).double()
    assert (effective_rank(flat, 1e-5), stable_rank(flat)) == (8, 8.0)
    assert entropy_rank(flat) == pytest.approx(8)
    assert (effective_rank(zeros, 1e-5), stable_rank(zeros), entropy_rank(zeros)) == (0, 0, 0)


def test_bounds_are_those_of_the_heads_and_say_why_there_is_none():
    for bias in (True, False):
        assert rank_bound(4, has_bias=bias).value == Softmax(6, 9, 4, bias=bias).rank_bound
    assert rank_bound(4, has_bias=True, num_softmaxes=3).value is None
    capped = rank_bound(4, has_bias=False, softcap=30.0)
    assert capped.value is None and "soft-capped" in capped.reason


def test_soft_capped_logits_do_exceed_the_bound_of_linear_ones():
    logits = 30 * torch.randn(90, 4).double() @ torch.randn(4, 60).double()
    assert numerical_rank_float64(spectrum_of(logits.log_softmax(-1))) == 5
    capped = 30 * torch.tanh(logits / 30)
    assert numerical_rank_float64(spectrum_of(capped.log_softmax(-1))) == 60
