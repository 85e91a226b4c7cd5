"""Numerical rank of a matrix of log-probabilities.

A rank read off floating-point numbers is a count of singular values above their round-off. The
epsilon must be that of the precision in which the numbers were *made*: float32 numbers judged with
float64's epsilon look like a matrix of full rank.
"""

import math

import torch
from torch import Tensor


def press_threshold(largest: float, shape: tuple[int, int], eps: float) -> float:
    """½ √(m + n + 1) · σ_max · ε: round-off of singular values, Press et al. (2007)."""
    return 0.5 * math.sqrt(sum(shape) + 1) * largest * eps


def numerical_rank(singular_values: Tensor, shape: tuple[int, int], eps: float) -> int:
    """How many singular values of a matrix of this shape stand above their round-off.

    Args:
        singular_values: in descending order.
        eps: machine epsilon of the precision in which the matrix was computed.
    """
    threshold = press_threshold(singular_values[0].item(), shape, eps)
    return int((singular_values > threshold).sum())


def log_prob_rank(log_prob: Tensor) -> tuple[int, Tensor]:
    """Numerical rank and singular values (descending) of log-probabilities computed in float64."""
    if log_prob.dtype != torch.float64:
        raise ValueError(f"log_prob must be float64, got {log_prob.dtype}")
    if log_prob.dim() != 2 or log_prob.numel() == 0 or not log_prob.isfinite().all():
        raise ValueError(f"log_prob must be a finite matrix, got {tuple(log_prob.shape)}")
    singular_values = torch.linalg.svdvals(log_prob)
    rows, columns = log_prob.shape
    eps = torch.finfo(torch.float64).eps
    return numerical_rank(singular_values, (rows, columns), eps), singular_values
