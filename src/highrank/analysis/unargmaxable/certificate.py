"""Certificates, checked in float64 against the head itself: rounding errors are bounded.

A sum of n products has a rounding error of at most γ(n) = nε / (1 − nε) times the sum of their
absolute values, in whatever order it is added (Higham, Accuracy and Stability, 2002, section 3.1).

E embedding size, V tokens, N states, n tokens of a proof.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.unargmaxable.problem import BLOCK, Everywhere, Problem, leads_in


@dataclass(frozen=True, kw_only=True)
class State:
    """A hidden state that makes the token the most likely."""

    hidden: Tensor
    """(E,), float64."""
    margin: float
    """The token's logit leads that of every token outside its group by at least this, which is
    positive after all rounding errors were subtracted."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Other tokens of which the token is a mean: their mean logit is at least its own, so that one
    of theirs always is. No tokens at all: the token's own bias is −inf."""

    tokens: Tensor
    """(n,)."""
    weights: Tensor
    """(n,), float64, positive."""
    lead: float
    """In no state does the token lead all others by more than this. At most 0 if the proof is
    exact. Otherwise it is the proof's rounding error: for bounded states, of the logits; for
    unbounded ones, of the logits divided by max(1, ‖hidden‖)."""
    is_exact: bool
    """Whether no rounding error is left: these weights prove it as they are, or it was proved that
    weights which do exist within their rounding errors."""


Certificate = State | Proof


def gamma(num_terms: int) -> float:
    """Relative rounding error of a sum of so many products and a few operations more."""
    unit = (num_terms + 8) * torch.finfo(torch.float64).eps
    return unit / (1 - unit)


def margins(problem: Problem, tokens: Tensor, hidden: Tensor) -> Tensor:
    """At most the lead of each token's logit over all others; −inf outside the set of states.

    Args:
        tokens: (N,).
        hidden: (N, E), the state that is to make each token the most likely.
    """
    weight, bias = problem.weight, problem.bias
    step = max(1, BLOCK // len(weight))
    pairs = zip(tokens.split(step), hidden.split(step), strict=True)
    lead = torch.cat([leads_in(torch.addmm(bias, h, weight.T), token)[0] for token, h in pairs])
    size = vector_norm(hidden, dim=1) * vector_norm(weight, dim=1).max() + bias.abs().max()
    margin: Tensor = lead - 2 * gamma(weight.size(1)) * size
    return margin.where(problem.states.contains(hidden) & margin.isfinite(), -torch.inf)


def lead_bound(problem: Problem, token: int, others: Tensor, weights: Tensor) -> float:
    """At least the lead of the token over all others in every state, as `Proof.lead` has it.

    The least of the leads over single tokens is at most their mean,
    Σ λ_j ((w_i − w_j)·h + b_i − b_j) / Σ λ_j.
    """
    weight, bias = problem.weight, problem.bias
    error = gamma(len(others))
    total = weights.sum().item() * (1 - error)
    apart = weight[token] - weight[others]  # (n, E)
    absolute = weights @ (weight[token].abs() + weight[others].abs())  # (E,)
    gap = (weights @ (bias[token] - bias[others])).item()
    gap += error * (weights @ (bias[token].abs() + bias[others].abs())).item()
    if isinstance(problem.states, Everywhere):
        gap = max(gap, 0.0)
    lead = problem.states.greatest(weights @ apart, error * absolute) + gap
    # Rounded away from zero where that is the safe side.
    return lead / total if lead > 0 else lead / (weights.sum().item() * (1 + error))


def is_exact(problem: Problem, token: int, others: Tensor, weights: Tensor) -> bool:
    """Whether w_i = Σ μ_j w_j, Σ μ_j = 1, Σ μ_j b_j ≥ b_i for some real μ > 0 close to the weights.

    Then no state at all makes the token lead. Either the weights themselves do it, which rational
    arithmetic decides, or Newton's method does it from them (Kantorovich): see `_nearest`.
    """
    if _is_exact_rational(problem, token, others, weights):
        return True
    away = _nearest(problem, token, others, weights, with_bias=False)
    if weights.min() > away:
        own, bias = problem.bias[token], problem.bias[others]
        gap = (weights @ (own - bias)).item()
        spread = (own - bias).abs().sum().item()
        absolute = (weights @ (own.abs() + bias.abs())).item()
        if gap + away * spread * (1 + 1e-9) + gamma(len(others)) * absolute <= 0:
            return True
        if not (bias != own).any():
            return True
    away = _nearest(problem, token, others, weights, with_bias=True)
    return weights.min().item() > away


def equations(
    problem: Problem, token: int, others: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor]:
    """A matrix (E+1, n) or, with the biases, (E+2, n), and the right side (E+1,) or (E+2,).

    Exact weights of a proof satisfy matrix · weights = right side. The rows are scaled by powers
    of two, which changes no digit.

    Args:
        token: to be proved unargmaxable.
        others: (n,), those that prove it.
    """
    weight, bias = problem.weight, problem.bias
    one = 2.0 ** math.ceil(math.log2(weight[others].abs().max().item() or 1.0))
    size = 2.0 ** math.ceil(math.log2(bias[others].abs().max().item() or 1.0))

    def columns(chosen: Tensor) -> Tensor:
        ones = weight.new_full((1, len(chosen)), one)
        rows = [weight[chosen].T, ones, bias[None, chosen] * (one / size)]
        return torch.cat(rows if with_bias else rows[:-1])

    return columns(others), columns(torch.tensor([token]))[:, 0]


def _nearest(
    problem: Problem, token: int, others: Tensor, weights: Tensor, with_bias: bool
) -> float:
    """How far, in each weight, an exact solution of the equations is at most; inf if unknown.

    For M μ = q and an approximate right inverse C with ‖1 − M C‖ ≤ α < 1 the equation M C y = ρ has
    a solution with ‖y‖ ≤ ‖ρ‖ / (1 − α) for ρ = q − M λ; then μ = λ + C y. Norms are maximum norms.
    """
    matrix, right = equations(problem, token, others, with_bias)
    if matrix.size(0) > matrix.size(1):
        return math.inf
    inverse: Tensor = torch.linalg.pinv(matrix)  # (n, E+1)
    error = gamma(max(matrix.shape))
    residual = (right - matrix @ weights).abs() + error * (right.abs() + matrix.abs() @ weights)
    defect = torch.eye(len(matrix), dtype=matrix.dtype) - matrix @ inverse
    defect = defect.abs() + error * (matrix.abs() @ inverse.abs() + 1)
    alpha = defect.sum(dim=1).max().item() * (1 + 1e-9)
    if not alpha < 0.5:
        return math.inf
    size = inverse.abs().sum(dim=1).max().item()
    return size * residual.max().item() / (1 - alpha) * (1 + 1e-9)


def _is_exact_rational(problem: Problem, token: int, others: Tensor, weights: Tensor) -> bool:
    weight, bias = problem.weight, problem.bias
    if (weights @ (weight[token] - weight[others])).abs().max() > 0:
        return False
    factors = [Fraction(factor) for factor in weights.tolist()]

    def mean_lead(own: float, rivals: list[float]) -> Fraction:
        leads = (Fraction(own) - Fraction(rival) for rival in rivals)
        return sum((f * lead for f, lead in zip(factors, leads, strict=True)), Fraction(0))

    if mean_lead(bias[token].item(), bias[others].tolist()) > 0:
        return False
    columns = zip(weight[token].tolist(), weight[others].T.tolist(), strict=True)
    return all(mean_lead(own, rivals) == 0 for own, rivals in columns)
