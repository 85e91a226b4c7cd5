"""Numerical ranks of matrices whose rank is known."""

import numpy as np
import pytest
import torch

from highrank.analysis.rank import log_prob_rank, numerical_rank, press_threshold


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
