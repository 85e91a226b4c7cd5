"""Unargmaxable tokens: those that no hidden state makes the most likely.

A token whose vector lies inside the convex hull of the others' never leads, whatever the network
before the head has computed: Demeter et al. (2020), https://aclanthology.org/2020.acl-main.198,
Grivas et al. (2022), https://aclanthology.org/2022.acl-long.456. Most tokens are decided by a
search for a state that makes the token lead, the rest by linear programs. No verdict is given
without a `certificate` that passed its check.

E embedding size, V vocabulary, N tokens that are still open, R remembered rivals.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from highrank.analysis.unargmaxable.certificate import (
    Certificate,
    Proof,
    State,
    check_scipy,
    decide_token,
    margins,
)
from highrank.analysis.unargmaxable.problem import (
    NEVER,
    Deadline,
    Everywhere,
    OutOfTime,
    Problem,
    States,
    build_problem,
    unit,
)
from highrank.progress import OnProgress

# By the position of a distinct vector; None if neither kind passed its check. What was not tried is
# left out.
Certificates = dict[int, Certificate | None]

# The fraction of the progress that the search is given.
SEARCH_FRACTION = 0.2
# With which the program of a sampled token begins.
NUM_RIVALS = 32
# Looks at the whole vocabulary.
NUM_SWEEPS = 16
# Rivals remembered after each look, and steps away from them.
NUM_REMEMBERED, NUM_STEPS = 8, 50
# The first step, as a fraction of the reach of the states; step n is √n times shorter.
FIRST_STEP = 0.1
# Tokens that move at once.
NUM_MOVING = 256


class Verdict(StrEnum):
    ARGMAXABLE = "argmaxable"
    """Some state makes it more likely than every other token."""
    TIED = "tied"
    """The same but for tokens with the same vector and bias, which always lead with it."""
    UNARGMAXABLE = "unargmaxable"
    """In every state another token is at least as likely."""
    UNDECIDED = "undecided"
    """Neither certificate passed its check, too close to call in float64; or there was no time."""


@dataclass(frozen=True, kw_only=True)
class TokenVerdict:
    token: int
    certificate: Certificate | None
    """A state if the token is argmaxable or tied, a proof if not, None if undecided."""
    group: tuple[int, ...]
    """The tokens with its vector and its bias, itself included."""
    is_untried: bool
    """Whether it is undecided for lack of time."""

    @property
    def verdict(self) -> Verdict:
        if self.certificate is None:
            return Verdict.UNDECIDED
        if isinstance(self.certificate, Proof):
            return Verdict.UNARGMAXABLE
        return Verdict.ARGMAXABLE if len(self.group) == 1 else Verdict.TIED


def decide_tokens(
    weight: Tensor,
    bias: Tensor | None = None,
    states: States | None = None,
    *,
    num_sampled: int | None = None,
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[TokenVerdict, ...]:
    """For each token, whether some state h gives it the only greatest of the logits W h + b.

    Args:
        weight: (V, E), in any precision: its numbers are taken as they are.
        bias: (V,), or None for zeros; −inf forbids a token.
        states: the hidden states that are possible, all of R^E if None.
        num_sampled: how many tokens are drawn and decided, against all; the others are untried.
            None decides all.
        seconds: after which no more is tried: tokens without a certificate are then undecided. The
            set-up and checks of what was found are not cut short. No limit if None.
    """
    check_scipy()
    deadline, show = Deadline(seconds), on_progress or (lambda fraction, text: None)
    matrix, offset = _head(weight, bias)
    position, representatives = _distinct(matrix, offset)
    problem = build_problem(
        matrix[representatives], offset[representatives], states or Everywhere()
    )
    if len(representatives) == 1:
        # All tokens that are possible at all have the same vector: any state will do.
        hidden = problem.states.project(torch.zeros_like(problem.rows))[0, :-1]
        found: Certificates = {0: State(hidden=hidden, margin=math.inf)}
    else:
        found = _decide(problem, num_sampled, deadline, show)
    return _verdicts(position, representatives, offset.tolist(), found)


def _head(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and bias, checked, in float64."""
    if weight.dim() != 2 or weight.numel() == 0 or not weight.isfinite().all():
        raise ValueError(f"weight must be a finite matrix, got {tuple(weight.shape)}")
    matrix = weight.detach().cpu().double().contiguous()
    if bias is None:
        return matrix, matrix.new_zeros(len(matrix))
    offset = bias.detach().cpu().double()
    if offset.shape != (len(matrix),):
        raise ValueError(f"bias must have shape ({len(matrix)},), got {tuple(offset.shape)}")
    if not (offset < math.inf).all():
        raise ValueError("bias must be finite or −inf, got inf or nan")
    if not offset.isfinite().any():
        raise ValueError("bias must be finite for at least one token, got −inf for all")
    return matrix, offset


def _distinct(weight: Tensor, bias: Tensor) -> tuple[list[int], list[int]]:
    """For each token the position of its vector, and for each vector a token that represents it.

    Of the tokens with one vector only those with the largest bias can lead, and they lead together:
    the first of them represents the vector. A token whose bias is −inf has position −1.
    """
    # Zero has two signs but is one number.
    rows, biases = (weight + 0.0).numpy(), bias.tolist()
    known: dict[bytes, int] = {}
    representatives: list[int] = []
    position = [-1] * len(biases)
    for token in bias.isfinite().nonzero()[:, 0].tolist():
        position[token] = known.setdefault(rows[token].tobytes(), len(representatives))
        if position[token] == len(representatives):
            representatives.append(token)
        elif biases[token] > biases[representatives[position[token]]]:
            representatives[position[token]] = token
    return position, representatives


def _decide(
    problem: Problem, num_sampled: int | None, deadline: Deadline, show: OnProgress
) -> Certificates:
    """States by search, then linear programs for the tokens without one, while there is time."""
    if num_sampled is None:
        tokens = list(range(len(problem.weight)))
        margin, hidden, rivals = search_states(
            problem, lambda fraction, text: show(fraction * SEARCH_FRACTION, text), deadline
        )
    else:
        tokens, margin, hidden, rivals = _sample_states(problem, num_sampled)
    found: Certificates = {
        token: State(hidden=state, margin=value)
        for token, state, value in zip(tokens, hidden, margin.tolist(), strict=True)
        if value > 0
    }
    for done, (token, first) in enumerate(rivals.items()):
        if deadline.has_passed:
            break
        fraction = SEARCH_FRACTION + (1 - SEARCH_FRACTION) * done / len(rivals)
        show(fraction, f"solving: {len(tokens) - len(found)} tokens are open")
        try:
            found[token] = decide_token(problem, token, first, deadline)
        except OutOfTime:
            break
    num_open = len(tokens) - len(found)
    show(1.0, f"time is up: {num_open} tokens are open" if num_open else "done")
    return found


def _sample_states(
    problem: Problem, num_sampled: int
) -> tuple[list[int], Tensor, Tensor, dict[int, Tensor]]:
    """Tokens that are drawn, and the margin, state and rivals of each in its own vector."""
    random = torch.Generator().manual_seed(0)
    drawn = torch.randperm(len(problem.weight), generator=random)[:num_sampled]
    lifted = problem.at_reach(problem.rows[drawn])
    lead, rivals = problem.leads(drawn, lifted, NUM_RIVALS)
    hidden = problem.hidden(lifted, lead)
    margin = margins(problem, drawn, hidden)
    left = (margin <= 0).nonzero()[:, 0]
    open_rivals = dict(zip(drawn[left].tolist(), rivals[left], strict=True))
    return drawn.tolist(), margin, hidden, open_rivals


def _verdicts(
    position: list[int], representatives: list[int], biases: list[float], found: Certificates
) -> tuple[TokenVerdict, ...]:
    """The verdicts on all tokens, by the certificates of the representatives."""
    keys = list(zip(position, biases, strict=True))
    members: dict[tuple[int, float], list[int]] = {}
    for token, key in enumerate(keys):
        members.setdefault(key, []).append(token)
    groups = {key: tuple(tokens) for key, tokens in members.items()}

    def certificate(at: int, own: float) -> Certificate | None:
        if at < 0:
            return _simple_proof([], -math.inf)
        largest = biases[representatives[at]]
        if own < largest:
            return _simple_proof([representatives[at]], math.nextafter(own - largest, 0.0))
        proved = found.get(at)
        if not isinstance(proved, Proof):
            return proved
        # The programs count the representatives only.
        return replace(proved, tokens=torch.tensor(representatives)[proved.tokens])

    proofs = [certificate(*key) for key in keys]
    return tuple(
        TokenVerdict(
            token=token,
            certificate=proof,
            group=groups[key],
            is_untried=proof is None and key[0] not in found,
        )
        for token, (key, proof) in enumerate(zip(keys, proofs, strict=True))
    )


def _simple_proof(tokens: list[int], lead: float) -> Proof:
    """By a token of the same vector and a larger bias, or by the token's own bias of −inf."""
    index = torch.tensor(tokens, dtype=torch.long)
    weights = torch.ones(len(tokens), dtype=torch.float64)
    return Proof(tokens=index, weights=weights, lead=lead, is_exact=True)


def search_states(
    problem: Problem, on_progress: OnProgress, deadline: Deadline = NEVER
) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Margins (V,), states (V, E) and rivals, found for all tokens before the time is up.

    A token's own vector is tried as the state (the longest vector always passes this test), then
    the same in coordinates in which the vectors have no preferred direction. Tokens that still
    trail remember their strongest rivals and move away from the worst of those, many steps for each
    look at the whole vocabulary. The search is done in float32; what it finds is checked in
    float64. A margin is not positive where no state was found; such a token has its remembered
    rivals, unless the time was up.
    """
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
        lead, rivals = problem.leads(tokens, lifted, NUM_REMEMBERED, deadline)
        tokens, lifted, known = tokens[: len(lead)], lifted[: len(lead)], known[: len(lead)]
        ahead = (lead > 0).nonzero()[:, 0]
        precise = problem.states.project(lifted[ahead].double())
        states = problem.hidden(precise, lead[ahead].double())
        hidden[tokens[ahead]] = states
        margin[tokens[ahead]] = margins(problem, tokens[ahead], states)
        left = margin[tokens] <= 0
        known = torch.cat([known, rivals], dim=1)[left]
        tokens, lifted = tokens[left], lifted[left]
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
    return margin, hidden, open_rivals


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
