"""States found by search: the cheap certificates, for all tokens in one multiply.

A token's own vector is tried as the state (the longest vector always passes this test), then the
same in coordinates in which the vectors have no preferred direction. Tokens that still trail
remember their strongest rivals and move away from the worst of those, many steps for each look at
the whole vocabulary. The search is done in float32; what it finds is checked in float64.

E embedding size, V distinct tokens, N tokens that are still open, R remembered rivals.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank.analysis.unargmaxable.certificate import margins
from highrank.analysis.unargmaxable.problem import NEVER, Deadline, Everywhere, Problem, unit

# Looks at the whole vocabulary.
NUM_SWEEPS = 16
# Rivals remembered after each look, and steps away from them.
NUM_RIVALS = 8
NUM_STEPS = 50
# The first step, as a fraction of the reach of the states; step n is √n times shorter.
FIRST_STEP = 0.1
# Tokens that move at once.
NUM_MOVING = 256


@dataclass(frozen=True, kw_only=True)
class Found:
    margin: Tensor
    """(V,): checked; not positive where no state was found."""
    hidden: Tensor
    """(V, E): the states."""
    rivals: dict[int, Tensor]
    """The remembered rivals of each token that is still open; of some only if the time was up."""


def search_states(
    problem: Problem,
    on_progress: Callable[[float, str], None] | None = None,
    deadline: Deadline = NEVER,
) -> Found:
    """What is found of all tokens before the time is up."""
    num_tokens, size = problem.weight.shape
    margin = torch.full((num_tokens,), -torch.inf, dtype=torch.float64)
    hidden = torch.zeros(num_tokens, size, dtype=torch.float64)
    tokens, rows = torch.arange(num_tokens), problem.rows.float()
    sphere = _sphere(problem.rows).float()  # (E+1, E+1)
    known = torch.empty(num_tokens, 0, dtype=torch.long)  # (N, R)
    lifted = problem.at_reach(rows)
    for sweep in range(NUM_SWEEPS):
        if deadline.has_passed:
            break
        lead, rivals = problem.leads(tokens, lifted, NUM_RIVALS, deadline)
        tokens, lifted, known = tokens[: len(lead)], lifted[: len(lead)], known[: len(lead)]
        ahead = (lead > 0).nonzero()[:, 0]
        precise = problem.states.project(lifted[ahead].double())
        states = problem.hidden(precise, lead[ahead].double())
        hidden[tokens[ahead]] = states
        margin[tokens[ahead]] = margins(problem, tokens[ahead], states)
        left = margin[tokens] <= 0
        known = torch.cat([known, rivals], dim=1)[left]
        tokens, lifted = tokens[left], lifted[left]
        if on_progress is not None:
            fraction = 1.0 if len(tokens) == 0 else (sweep + 1) / NUM_SWEEPS
            on_progress(fraction, f"searching: {len(tokens)} of {num_tokens} tokens are open")
        if len(tokens) == 0:
            break
        if sweep == 0:
            lifted = problem.at_reach(rows[tokens] @ sphere)
        else:
            blocks = (part.split(NUM_MOVING) for part in (tokens, known, lifted))
            lifted = torch.cat(
                [
                    x
                    if deadline.has_passed
                    else _moved(problem, rows[token, None] - rows[rival], x, sphere)
                    for token, rival, x in zip(*blocks, strict=True)
                ]
            )
    open_rivals = {token: k.unique() for token, k in zip(tokens.tolist(), known, strict=True)}
    return Found(margin=margin, hidden=hidden, rivals=open_rivals)


def _moved(problem: Problem, apart: Tensor, lifted: Tensor, sphere: Tensor) -> Tensor:
    """States (N, E+1) after steps that each increase the lead over the worst rival.

    Args:
        apart: (N, R, E+1), the token's row less those of its rivals.
    """
    reach = problem.states.reach(problem.weight.size(1))
    index = torch.arange(len(apart))
    if isinstance(problem.states, Everywhere):
        lifted = unit(lifted)
    for step in range(1, NUM_STEPS + 1):
        worst = torch.bmm(apart, lifted[:, :, None])[:, :, 0].argmin(dim=1)
        away = unit(apart[index, worst] @ sphere)
        lifted = problem.states.project(lifted + away * (FIRST_STEP * reach / step**0.5))
    return lifted


def _sphere(rows: Tensor) -> Tensor:
    """The inverse of the vectors' covariance, and of the biases' variance (E+1, E+1)."""
    vectors, offset = rows[:, :-1], rows[:, -1]
    inverse: Tensor = torch.linalg.pinv(vectors.T @ vectors / len(rows), hermitian=True, rtol=1e-10)
    spread = offset.square().mean()
    sphere: Tensor = torch.block_diag(inverse, 1 / spread if spread > 0 else spread)
    return sphere
