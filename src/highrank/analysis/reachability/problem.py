"""The head as the search and the linear programme see it: distinct rows, centred and scaled.

The lead of word i over word j in the lifted state (h, s) is (rows_i − rows_j)·(h, s). Its sign is
that of the lead of their logits.

E embedding size, V distinct words, N states.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.reachability.deadline import NEVER, Deadline
from highrank.analysis.reachability.states import Everywhere, States

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
