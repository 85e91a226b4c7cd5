"""States found by search: the cheap certificates, for all words in one multiply.

A word's own vector is tried as the state (the longest vector always passes this test), then the
same in coordinates in which the vectors have no preferred direction. Words that still trail
remember their strongest rivals and move away from the worst of those, many steps for each look at
the whole vocabulary. The search is done in float32; what it finds is checked in float64.

E embedding size, V distinct words, N words that are still open, R remembered rivals.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from highrank.analysis.unargmaxable.problem import Problem, margins
from highrank.analysis.unargmaxable.result import NEVER, Deadline
from highrank.analysis.unargmaxable.states import Everywhere

# Looks at the whole vocabulary.
NUM_SWEEPS = 16
# Rivals remembered after each look, and steps away from them.
NUM_RIVALS = 8
NUM_STEPS = 50
# The first step, as a share of the reach of the states; step n is √n times shorter.
FIRST_STEP = 0.1
# Words that move at once.
NUM_MOVING = 256


@dataclass(frozen=True, kw_only=True)
class Found:
    margin: Tensor
    """(V,): checked; not positive where no state was found."""
    hidden: Tensor
    """(V, E): the states."""
    rivals: dict[int, Tensor]
    """The remembered rivals of each word that is still open; of some only if the time was up."""


def search_states(
    problem: Problem,
    on_progress: Callable[[float, str], None] | None = None,
    deadline: Deadline = NEVER,
) -> Found:
    """What is found of all words before the time is up."""
    num_words, size = problem.weight.shape
    margin = torch.full((num_words,), -torch.inf, dtype=torch.float64)
    hidden = torch.zeros(num_words, size, dtype=torch.float64)
    words, rows = torch.arange(num_words), problem.rows.float()
    sphere = _sphere(problem.rows).float()  # (E+1, E+1)
    known = torch.empty(num_words, 0, dtype=torch.long)  # (N, R)
    lifted = _at_reach(problem, rows)
    for sweep in range(NUM_SWEEPS):
        if deadline.has_passed:
            break
        lead, rivals = problem.leads(words, lifted, NUM_RIVALS, deadline)
        words, lifted, known = words[: len(lead)], lifted[: len(lead)], known[: len(lead)]
        ahead = (lead > 0).nonzero()[:, 0]
        precise = problem.states.project(lifted[ahead].double())
        states = problem.hidden(precise, lead[ahead].double())
        hidden[words[ahead]] = states
        margin[words[ahead]] = margins(
            problem.weight, problem.bias, problem.states, words[ahead], states
        )
        left = margin[words] <= 0
        known = torch.cat([known, rivals], dim=1)[left]
        words, lifted = words[left], lifted[left]
        if on_progress is not None:
            share = 1.0 if len(words) == 0 else (sweep + 1) / NUM_SWEEPS
            on_progress(share, f"searching: {len(words)} of {num_words} words are open")
        if len(words) == 0:
            break
        if sweep == 0:
            lifted = _at_reach(problem, rows[words] @ sphere)
        else:
            blocks = zip(
                words.split(NUM_MOVING),
                known.split(NUM_MOVING),
                lifted.split(NUM_MOVING),
                strict=True,
            )
            lifted = torch.cat(
                [
                    x
                    if deadline.has_passed
                    else _moved(problem, rows[w, None] - rows[k], x, sphere)
                    for w, k, x in blocks
                ]
            )
    open_rivals = {word: k.unique() for word, k in zip(words.tolist(), known, strict=True)}
    return Found(margin=margin, hidden=hidden, rivals=open_rivals)


def _moved(problem: Problem, apart: Tensor, lifted: Tensor, sphere: Tensor) -> Tensor:
    """States (N, E+1) after steps that each increase the lead over the worst rival.

    Args:
        apart: (N, R, E+1), the word's row less those of its rivals.
    """
    reach = problem.states.reach(problem.weight.size(1))
    index = torch.arange(len(apart))
    if isinstance(problem.states, Everywhere):
        lifted = _unit(lifted)
    for step in range(1, NUM_STEPS + 1):
        worst = torch.bmm(apart, lifted[:, :, None])[:, :, 0].argmin(dim=1)
        away = _unit(apart[index, worst] @ sphere)
        lifted = problem.states.project(lifted + away * (FIRST_STEP * reach / step**0.5))
    return lifted


def _unit(vectors: Tensor) -> Tensor:
    norm: Tensor = vector_norm(vectors, dim=1, keepdim=True)
    return vectors / norm.clamp(min=1e-30)


def _at_reach(problem: Problem, directions: Tensor) -> Tensor:
    return problem.states.project(_unit(directions) * problem.states.reach(problem.weight.size(1)))


def _sphere(rows: Tensor) -> Tensor:
    """The inverse of the vectors' covariance, and of the biases' variance (E+1, E+1)."""
    vectors, offset = rows[:, :-1], rows[:, -1]
    inverse: Tensor = torch.linalg.pinv(vectors.T @ vectors / len(rows), hermitian=True, rtol=1e-10)
    spread = offset.square().mean()
    sphere: Tensor = torch.block_diag(inverse, 1 / spread if spread > 0 else spread)
    return sphere
