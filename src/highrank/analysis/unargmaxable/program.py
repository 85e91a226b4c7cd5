"""The exact answer for one token: a linear program that grows by the rivals it forgot.

    maximise t  subject to  (rows_i − rows_j)·(h, s) ≥ t  for the rivals j

A state that leads these rivals but not all tokens brings the ones that beat it into the program. If
already these few cannot all be led, their multipliers λ are the proof for the whole vocabulary.

E embedding size, V distinct tokens, n rivals.
"""

import importlib.util
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.unargmaxable.certificate import (
    Certificate,
    Proof,
    State,
    equations,
    is_exact,
    lead_bound,
    margins,
)
from highrank.analysis.unargmaxable.problem import NEVER, Deadline, OutOfTime, Problem
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
    multipliers = torch.from_numpy(result.ineqlin.marginals)
    return Optimum(-result.fun, torch.from_numpy(result.x)[:-1], -multipliers)


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
    chosen = multipliers > NEGLIGIBLE * multipliers.max()
    others, weights = rivals[chosen], multipliers[chosen]
    if len(others) == 0:
        return None
    proofs = []
    for candidate in _candidates(problem, token, others, weights / weights.sum()):
        proofs.append(_checked_proof(problem, token, others, candidate))
        if proofs[-1].is_exact:
            return proofs[-1]
    best = min(proofs, key=lambda proof: proof.lead)
    scale = problem.states.reach(problem.weight.size(1)) * vector_norm(problem.weight, dim=1).max()
    acceptable = TOLERANCE * (scale + problem.bias.abs().max()).item()
    return best if best.lead <= acceptable else None


def _candidates(problem: Problem, token: int, others: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """The weights polished and, where that spoils them, as they are."""
    for with_bias in (False, True):
        polished = _polished(problem, token, others, weights, with_bias)
        if polished.min() > 0:
            yield polished
    yield weights


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
