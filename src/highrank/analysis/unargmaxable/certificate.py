"""Certificates: a state in which a token leads, or a proof that there is none.

They are checked in float64 against the head itself, and rounding errors are bounded: a sum of n
products has an error of at most γ(n) = nε / (1 − nε) times the sum of their absolute values, in
whatever order it is added (Higham, Accuracy and Stability, 2002, section 3.1).

`decide_token` finds one by a linear program that grows by the rivals it forgot:

    maximise t  subject to  (rows_i − rows_j)·(h, s) ≥ t  for the rivals j

A state that leads these rivals but not all tokens brings the ones that beat it into the program. If
already these few cannot all be led, their multipliers λ are the proof for the whole vocabulary.

E embedding size, V distinct tokens, N states, n tokens of a proof or rivals.
"""

import importlib.util
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.unargmaxable.problem import (
    BLOCK,
    NEVER,
    Deadline,
    Everywhere,
    OutOfTime,
    Problem,
    leads_in,
)
from highrank.environment import install_hint

MAX_ROUNDS = 300
# Rivals that enter the program at once.
NUM_NEW = 32
# What the solver may violate, in units of the scaled rows.
SOLVER_TOLERANCE = 1e-10
# scipy's status for a limit that was reached; no limit of iterations is set here.
TIME_IS_UP = 1
# A lead that is worth a try at a proof.
SMALL = 1e-8
# The lead that may be left by a proof which rounding keeps from being exact, relative to the size
# of logits.
TOLERANCE = 1e-10
# Multipliers below this fraction of the largest are rounding errors of zero.
NEGLIGIBLE = 1e-12


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

    def columns(tokens: Tensor) -> Tensor:
        ones = weight.new_full((1, len(tokens)), one)
        rows = [weight[tokens].T, ones, bias[None, tokens] * (one / size)]
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


class Optimum(NamedTuple):
    lead: float
    lifted: Tensor
    """(E+1,)."""
    weights: Tensor
    """(n,): λ."""


def check_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ValueError(f"scipy must be installed for linear programs: {install_hint('cli')}")


def decide_token(
    problem: Problem, token: int, rivals: Tensor, deadline: Deadline = NEVER
) -> Certificate | None:
    """A checked certificate for the token; None if neither kind passes its check.

    Raises `OutOfTime` when the deadline has passed.

    Args:
        rivals: (n,), the tokens that the program begins with.
    """
    for _ in range(MAX_ROUNDS):
        optimum = solve(problem, token, rivals, deadline.seconds_left)
        if optimum is None:
            return None
        if optimum.lead <= SMALL:
            proof = prove(problem, token, rivals, optimum.weights)
            if proof is not None:
                return proof
        state = _checked_state(problem, token, problem.states.project(optimum.lifted[None]))
        if state is not None:
            return state
        new = _forgotten(problem, token, rivals, optimum)
        if len(new) == 0:
            return None
        rivals = torch.cat([rivals, new])
    return None


def solve(
    problem: Problem, token: int, rivals: Tensor, seconds: float = math.inf
) -> Optimum | None:
    """The best state against these rivals, with their multipliers; None if the solver gives up.

    Raises `OutOfTime` after so many seconds.
    """
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    if seconds <= 0:
        raise OutOfTime
    apart = problem.rows[token] - problem.rows[rivals]  # (n, E+1)
    above = torch.cat([-apart, torch.ones(len(rivals), 1, dtype=torch.float64)], dim=1)
    low, high = problem.states.limits(apart.size(1) - 1)
    bounds = np.stack([low.numpy(), high.numpy()], axis=1)
    result = linprog(
        np.append(np.zeros(apart.size(1)), -1.0),
        A_ub=above.numpy(),
        b_ub=np.zeros(len(rivals)),
        bounds=np.append(bounds, [[-np.inf, np.inf]], axis=0),
        method="highs",
        options={
            "primal_feasibility_tolerance": SOLVER_TOLERANCE,
            "dual_feasibility_tolerance": SOLVER_TOLERANCE,
            "time_limit": seconds,
        },
    )
    if result.status == TIME_IS_UP and math.isfinite(seconds):
        raise OutOfTime
    if result.status != 0:
        return None
    weights = -torch.from_numpy(result.ineqlin.marginals)
    return Optimum(-result.fun, torch.from_numpy(result.x)[:-1], weights)


def _checked_state(problem: Problem, token: int, lifted: Tensor) -> State | None:
    index = torch.tensor([token])
    lead, _ = problem.leads(index, lifted, 1)
    if lead.item() <= 0:
        return None
    hidden = problem.hidden(lifted, lead)
    margin = margins(problem, index, hidden).item()
    return State(hidden=hidden[0], margin=margin) if margin > 0 else None


def _forgotten(problem: Problem, token: int, rivals: Tensor, optimum: Optimum) -> Tensor:
    """The tokens outside the program that do most harm to its state."""
    logits = problem.rows @ optimum.lifted  # (V,)
    harm = logits - logits[token] + optimum.lead
    harm[token] = -torch.inf
    harm[rivals] = -torch.inf
    worst = harm.topk(min(NUM_NEW, len(harm)))
    return worst.indices[worst.values > SOLVER_TOLERANCE]


def prove(problem: Problem, token: int, rivals: Tensor, multipliers: Tensor) -> Proof | None:
    """A proof by the rivals (n,) with these multipliers (n,), polished; None if none passes."""
    is_used = multipliers > NEGLIGIBLE * multipliers.max()
    others, weights = rivals[is_used], multipliers[is_used]
    if len(others) == 0:
        return None
    proofs = []
    weights = weights / weights.sum()
    polished = [
        _polished(problem, token, others, weights, with_bias) for with_bias in (False, True)
    ]
    # Polishing may spoil the weights: then they are tried as they are.
    for candidate in (*(p for p in polished if p.min() > 0), weights):
        proofs.append(_checked_proof(problem, token, others, candidate))
        if proofs[-1].is_exact:
            return proofs[-1]
    best = min(proofs, key=lambda proof: proof.lead)
    scale = problem.states.reach(problem.weight.size(1)) * vector_norm(problem.weight, dim=1).max()
    acceptable = TOLERANCE * (scale + problem.bias.abs().max()).item()
    return best if best.lead <= acceptable else None


def _polished(
    problem: Problem, token: int, others: Tensor, weights: Tensor, with_bias: bool
) -> Tensor:
    """Two steps of Newton's method towards weights that satisfy the equations."""
    matrix, right = equations(problem, token, others, with_bias)
    inverse = torch.linalg.pinv(matrix)
    for _ in range(2):
        weights = weights + inverse @ (right - matrix @ weights)
    return weights


def _checked_proof(problem: Problem, token: int, others: Tensor, weights: Tensor) -> Proof:
    lead = lead_bound(problem, token, others, weights)
    exact = lead <= 0 or is_exact(problem, token, others, weights)
    lead = min(lead, 0.0) if exact else lead
    return Proof(tokens=others, weights=weights, lead=lead, is_exact=exact)
