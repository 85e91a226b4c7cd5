"""The problem of one head: its distinct tokens, its hidden states, and the time there is.

A *lifted* state (h, s) has one number more than a hidden state, which multiplies the biases: s = 1
in a bounded set; where states are unbounded only h/s counts, and s ≥ 0 may be as small as it likes.
The lead of token i over token j in (h, s) is (rows_i − rows_j)·(h, s). Its sign is that of the lead
of their logits.

E embedding size, V tokens, N states, R rivals.
"""

import math
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor
from torch.linalg import vector_norm

# Numbers in one block of logits: they stay in the cache.
BLOCK = 1 << 20
# Covers the rounding errors of a norm.
SLACK = 1e-12


@dataclass(frozen=True)
class Everywhere:
    """All of R^E."""

    def limits(self, embedding_size: int) -> tuple[Tensor, Tensor]:
        """The least and the greatest lifted state: any box will do, as a ratio has no scale."""
        high = torch.ones(embedding_size + 1, dtype=torch.float64)
        low = -high
        low[-1] = 0
        return low, high

    def reach(self, embedding_size: int) -> float:
        """A norm that no state exceeds, or 1 where only the direction counts."""
        return 1.0

    def project(self, lifted: Tensor) -> Tensor:
        """The nearest lifted states (N, E+1) of the set."""
        return torch.cat([lifted[:, :-1], lifted[:, -1:].clamp(min=0)], dim=1)

    def contains(self, hidden: Tensor) -> Tensor:
        """Which of the rows (N, E) certainly are states of the set, whatever the rounding."""
        return hidden.isfinite().all(dim=1)

    def greatest(self, vector: Tensor, error: Tensor) -> float:
        """At least (vector ± error)·h / max(1, ‖h‖) for every state h."""
        return float(vector_norm(vector.abs() + error)) * (1 + SLACK)


@dataclass(frozen=True)
class Box:
    """|h| ≤ bound in every coordinate: Box(1) for the outputs of tanh.

    A token that leads strictly on the edge also leads just inside it, so that the closed set serves
    for the open one.
    """

    bound: float

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"bound must be positive and finite, got {self.bound}")

    def limits(self, embedding_size: int) -> tuple[Tensor, Tensor]:
        high = torch.full((embedding_size + 1,), self.bound, dtype=torch.float64)
        low = -high
        low[-1] = high[-1] = 1
        return low, high

    def reach(self, embedding_size: int) -> float:
        return self.bound * math.sqrt(embedding_size)

    def project(self, lifted: Tensor) -> Tensor:
        low, high = self.limits(lifted.size(1) - 1)
        return lifted.clamp(low.to(lifted.dtype), high.to(lifted.dtype))

    def contains(self, hidden: Tensor) -> Tensor:
        return (hidden.abs() <= self.bound).all(dim=1)

    def greatest(self, vector: Tensor, error: Tensor) -> float:
        size = vector.abs()
        rounding = (self.bound * (error + SLACK * size)).sum() * (1 + SLACK)
        return ((self.bound * size).sum() + rounding).item()


States = Everywhere | Box


class OutOfTime(Exception):
    """The deadline has passed before the work was done."""


class Deadline:
    """So many seconds from now, or never."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self._end = math.inf if seconds is None else monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """inf if there is no limit."""
        return self._end - monotonic()

    @property
    def has_passed(self) -> bool:
        return self.seconds_left <= 0


NEVER = Deadline()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Tokens with distinct vectors, centred and scaled."""

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
        self, tokens: Tensor, lifted: Tensor, num_rivals: int, deadline: Deadline = NEVER
    ) -> tuple[Tensor, Tensor]:
        """Lead of each token (N,) in its lifted state (N, E+1), and its strongest rivals (N, R).

        Of the first tokens only if the time is up before all are done.
        """
        rows = self.rows.to(lifted.dtype)
        step = max(1, BLOCK // len(rows))
        leads, rivals = [], []
        for block, state in zip(tokens.split(step), lifted.split(step), strict=True):
            lead, others = leads_in(state @ rows.T, block)
            leads.append(lead)
            rivals.append(others.topk(min(num_rivals, len(rows) - 1)).indices)
            if deadline.has_passed:
                break
        return torch.cat(leads), torch.cat(rivals)

    def at_reach(self, directions: Tensor) -> Tensor:
        """The lifted states (N, E+1) in these directions, as far out as the set reaches."""
        reach = self.states.reach(self.weight.size(1))
        return self.states.project(unit(directions) * reach)

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


def leads_in(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Lead of the token of each row of logits (N, V); the logits, with its own now at −inf."""
    own = logits.gather(1, tokens[:, None])
    others = logits.scatter_(1, tokens[:, None], -torch.inf)
    return own[:, 0] - others.amax(dim=1), others


def unit(vectors: Tensor) -> Tensor:
    """The rows with norm 1."""
    norm: Tensor = vector_norm(vectors, dim=1, keepdim=True)
    return vectors / norm.clamp(min=1e-30)
