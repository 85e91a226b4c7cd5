"""The head as the search and the linear programme see it: distinct rows, centred and scaled.

The lead of word i over word j in the lifted state (h, s) is (rows_i − rows_j)·(h, s). Its sign is
that of the lead of their logits.

E embedding size, V distinct words, N states.

Certificates, checked in float64 against the head itself: rounding errors are bounded, not hoped.

A sum of n products has a rounding error of at most γ(n) = nε / (1 − nε) times the sum of their
absolute values, in whatever order it is added (Higham, Accuracy and Stability, 2002, section 3.1).

E embedding size, V vocabulary, N states, n words of a proof.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.unargmaxable.result import NEVER, Deadline
from highrank.analysis.unargmaxable.states import Everywhere, States

# Numbers in one block of logits: they stay in the cache.
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    weight: Tensor
    """(V, E), float64, rows distinct."""
    bias: Tensor
    """(V,), float64, finite."""
    states: States
    rows: Tensor
    """(V, E+1): vectors and biases, without their means, divided by `size` and `bias_size`."""
    size: float
    bias_size: float

    def leads(
        self, words: Tensor, lifted: Tensor, num_rivals: int, deadline: Deadline = NEVER
    ) -> tuple[Tensor, Tensor]:
        """Lead of each word (N,) in its lifted state (N, E+1), and its strongest rivals (N, R).

        Of the first words only if the time is up before all are done.
        """
        rows = self.rows.to(lifted.dtype)
        step = max(1, BLOCK // len(rows))
        leads, rivals = [], []
        for block, state in zip(words.split(step), lifted.split(step), strict=True):
            lead, others = leads_in(state @ rows.T, block)
            leads.append(lead)
            rivals.append(others.topk(min(num_rivals, len(rows) - 1)).indices)
            if deadline.has_passed:
                break
        return torch.cat(leads), torch.cat(rivals)

    def hidden(self, lifted: Tensor, lead: Tensor) -> Tensor:
        """The states (N, E) that the lifted ones stand for, in which the lead is positive if it is.

        Differences of scaled biases are at most 2, so that s may be raised to lead / 4.
        """
        hidden, scale = lifted[:, :-1], lifted[:, -1]
        if not isinstance(self.states, Everywhere):
            return hidden
        if self.bias_size == 0:
            norm: Tensor = vector_norm(hidden, dim=1, keepdim=True)
            return hidden / norm.clamp(min=1e-300)
        scale = torch.maximum(scale, lead.clamp(min=1e-300) / 4)
        return hidden * (self.bias_size / self.size / scale)[:, None]


def leads_in(logits: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Lead of the word of each row of logits (N, V); the logits, with its own now at −inf."""
    own = logits.gather(1, words[:, None])
    others = logits.scatter_(1, words[:, None], -torch.inf)
    return own[:, 0] - others.amax(dim=1), others


def build_problem(weight: Tensor, bias: Tensor, states: States) -> Problem:
    centred, offset = weight - weight.mean(dim=0), bias - bias.mean()
    size = centred.abs().max().item()
    bias_size = offset.abs().max().item()
    if not isinstance(states, Everywhere):
        # There the two have one unit.
        size = bias_size = max(size, bias_size)
    rows = torch.cat([centred / (size or 1), offset[:, None] / (bias_size or 1)], dim=1)
    return Problem(
        weight=weight, bias=bias, states=states, rows=rows, size=size or 1, bias_size=bias_size
    )


def gamma(num_terms: int) -> float:
    """Relative rounding error of a sum of so many products, with room for a few operations more."""
    unit = (num_terms + 8) * torch.finfo(torch.float64).eps
    return unit / (1 - unit)


def margins(weight: Tensor, bias: Tensor, states: States, words: Tensor, hidden: Tensor) -> Tensor:
    """At most the lead of each word's logit over all others; −inf outside the set of states.

    Args:
        weight: (V, E), float64.
        bias: (V,), float64.
        words: (N,).
        hidden: (N, E), the state that is said to make each word the most likely.
    """
    step = max(1, BLOCK // len(weight))
    pairs = zip(words.split(step), hidden.split(step), strict=True)
    lead = torch.cat([leads_in(torch.addmm(bias, h, weight.T), word)[0] for word, h in pairs])
    size = vector_norm(hidden, dim=1) * vector_norm(weight, dim=1).max() + bias.abs().max()
    margin: Tensor = lead - 2 * gamma(weight.size(1)) * size
    return margin.where(states.contains(hidden) & margin.isfinite(), -torch.inf)


def lead_bound(
    weight: Tensor, bias: Tensor, states: States, word: int, words: Tensor, weights: Tensor
) -> float:
    """At least the lead of the word over all others in every state, as `Proof.lead` has it.

    The least of the leads over single words is at most their mean,
    Σ λ_j ((w_i − w_j)·h + b_i − b_j) / Σ λ_j.
    """
    error = gamma(len(words))
    total = weights.sum().item() * (1 - error)
    apart = weight[word] - weight[words]  # (n, E)
    absolute = weights @ (weight[word].abs() + weight[words].abs())  # (E,)
    gap = (weights @ (bias[word] - bias[words])).item()
    gap += error * (weights @ (bias[word].abs() + bias[words].abs())).item()
    if isinstance(states, Everywhere):
        gap = max(gap, 0.0)
    lead = states.greatest(weights @ apart, error * absolute) + gap
    # Rounded away from zero where that is the safe side.
    return lead / total if lead > 0 else lead / (weights.sum().item() * (1 + error))


def is_exact(weight: Tensor, bias: Tensor, word: int, words: Tensor, weights: Tensor) -> bool:
    """Whether w_i = Σ μ_j w_j, Σ μ_j = 1, Σ μ_j b_j ≥ b_i for some real μ > 0 close to the weights.

    Then no state at all makes the word lead. Either the weights themselves do it, which rational
    arithmetic can tell, or Newton's method does it from them (Kantorovich): see `_nearest`.
    """
    gap = (weights @ (bias[word] - bias[words])).item()
    if _is_exact_rational(weight, bias, word, words, weights):
        return True
    away = _nearest(weight, bias, word, words, weights, with_bias=False)
    if weights.min() > away:
        spread = (bias[word] - bias[words]).abs().sum().item()
        absolute = (weights @ (bias[word].abs() + bias[words].abs())).item()
        if gap + away * spread * (1 + 1e-9) + gamma(len(words)) * absolute <= 0:
            return True
        if not (bias[words] != bias[word]).any():
            return True
    away = _nearest(weight, bias, word, words, weights, with_bias=True)
    return weights.min().item() > away


def equations(
    weight: Tensor, bias: Tensor, word: Tensor, words: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor]:
    """A matrix (E+1, n) or, with the biases, (E+2, n), and the right sides (E+1 or E+2, N).

    Exact weights for a word satisfy matrix · weights = right side. The rows are scaled by powers
    of two, which changes no digit.

    Args:
        word: (N,), the words to be proved unreachable.
        words: (n,), those that prove it.
    """
    one = 2.0 ** math.ceil(math.log2(weight[words].abs().max().item() or 1.0))
    size = 2.0 ** math.ceil(math.log2(bias[words].abs().max().item() or 1.0))

    def columns(chosen: Tensor) -> Tensor:
        ones = weight.new_full((1, len(chosen)), one)
        rows = [weight[chosen].T, ones, bias[None, chosen] * (one / size)]
        return torch.cat(rows if with_bias else rows[:-1])

    return columns(words), columns(word)


def _nearest(
    weight: Tensor, bias: Tensor, word: int, words: Tensor, weights: Tensor, with_bias: bool
) -> float:
    """How far, in each weight, an exact solution of the equations is at most; inf if unknown.

    For M μ = q and an approximate right inverse C with ‖1 − M C‖ ≤ α < 1 the equation M C y = ρ has
    a solution with ‖y‖ ≤ ‖ρ‖ / (1 − α) for ρ = q − M λ; then μ = λ + C y. Norms are maximum norms.
    """
    matrix, rights = equations(weight, bias, torch.tensor([word]), words, with_bias)
    right = rights[:, 0]
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


def _is_exact_rational(
    weight: Tensor, bias: Tensor, word: int, words: Tensor, weights: Tensor
) -> bool:
    if (weights @ (weight[word] - weight[words])).abs().max() > 0:
        return False
    shares = [Fraction(share) for share in weights.tolist()]

    def mean_lead(own: float, others: list[float]) -> Fraction:
        leads = (Fraction(own) - Fraction(other) for other in others)
        return sum((s * lead for s, lead in zip(shares, leads, strict=True)), Fraction(0))

    if mean_lead(bias[word].item(), bias[words].tolist()) > 0:
        return False
    columns = zip(weight[word].tolist(), weight[words].T.tolist(), strict=True)
    return all(mean_lead(own, others) == 0 for own, others in columns)
