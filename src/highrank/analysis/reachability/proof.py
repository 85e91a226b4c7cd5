"""From the multipliers of a programme to a proof that passes its check.

E embedding size, n words of the proof.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.reachability.check import equations, is_exact, lead_bound
from highrank.analysis.reachability.problem import Problem
from highrank.analysis.reachability.result import Proof

# Multipliers below this share of the largest are rounding errors of zero.
NEGLIGIBLE = 1e-12


def prove(
    problem: Problem, word: int, rivals: Tensor, multipliers: Tensor, tolerance: float
) -> Proof | None:
    """A proof by the rivals with these multipliers, polished; None if no proof passes.

    Args:
        rivals: (n,).
        multipliers: (n,).
        tolerance: the lead that an inexact proof may leave, relative to the size of logits.
    """
    chosen = multipliers > NEGLIGIBLE * multipliers.max()
    words, weights = rivals[chosen], multipliers[chosen]
    if len(words) == 0:
        return None
    proofs = []
    for candidate in _candidates(problem, word, words, weights / weights.sum()):
        proofs.append(_checked(problem, word, words, candidate))
        if proofs[-1].is_exact:
            return proofs[-1]
    best = min(proofs, key=lambda proof: proof.lead)
    scale = problem.states.reach(problem.weight.size(1)) * vector_norm(problem.weight, dim=1).max()
    acceptable = tolerance * (scale + problem.bias.abs().max()).item()
    return best if best.lead <= acceptable else None


def _candidates(problem: Problem, word: int, words: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """The weights polished and, where that spoils them, as they are."""
    for with_bias in (False, True):
        polished = _polished(problem, word, words, weights, with_bias)
        if polished.min() > 0:
            yield polished
    yield weights


def _checked(problem: Problem, word: int, words: Tensor, weights: Tensor) -> Proof:
    head = problem.weight, problem.bias
    lead = lead_bound(*head, problem.states, word, words, weights)
    exact = lead <= 0 or is_exact(*head, word, words, weights)
    return Proof(
        words=words, weights=weights, lead=min(lead, 0.0) if exact else lead, is_exact=exact
    )


def _polished(
    problem: Problem, word: int, words: Tensor, weights: Tensor, with_bias: bool
) -> Tensor:
    """Two steps of Newton's method towards weights that satisfy the equations."""
    index = torch.tensor([word])
    matrix, right = equations(problem.weight, problem.bias, index, words, with_bias)
    inverse = torch.linalg.pinv(matrix)
    for _ in range(2):
        weights = weights + inverse @ (right[:, 0] - matrix @ weights)
    return weights
