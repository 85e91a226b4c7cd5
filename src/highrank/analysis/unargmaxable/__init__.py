"""Unargmaxable tokens: those that no hidden state makes the most likely.

A token whose vector lies inside the convex hull of the others' never leads, whatever the network
before the head has computed: Demeter et al. (2020), https://aclanthology.org/2020.acl-main.198,
Grivas et al. (2022), https://aclanthology.org/2022.acl-long.456. Most tokens are decided by
`search` (a state that makes the token lead), the rest by `program` (linear programs, solved by
HiGHS). No verdict is given without a `certificate` that passed its check.

E embedding size, V vocabulary.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from highrank.analysis.unargmaxable.certificate import Certificate, Proof, State, margins
from highrank.analysis.unargmaxable.problem import (
    Deadline,
    Everywhere,
    OutOfTime,
    Problem,
    States,
    build_problem,
)
from highrank.analysis.unargmaxable.program import check_scipy, decide_token
from highrank.analysis.unargmaxable.search import search_states
from highrank.progress import OnProgress

# Of the distinct vectors, and the positions of those for which there was no time.
Certificates = tuple[list[Certificate | None], set[int]]

# The fraction of the progress that the search is given.
SEARCH_FRACTION = 0.2
# With which the program of a sampled token begins.
NUM_RIVALS = 32


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
        found = _decide_single(problem)
    elif num_sampled is None:
        found = _decide_all(problem, deadline, show)
    else:
        found = _decide_sample(problem, num_sampled, deadline, show)
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


def _decide_single(problem: Problem) -> Certificates:
    """All tokens that are possible at all have the same vector: any state will do."""
    hidden = problem.states.project(torch.zeros_like(problem.rows))[0, :-1]
    return [State(hidden=hidden, margin=math.inf)], set()


def _decide_all(problem: Problem, deadline: Deadline, show: OnProgress) -> Certificates:
    found = search_states(
        problem, lambda fraction, text: show(fraction * SEARCH_FRACTION, text), deadline
    )
    certificates: list[Certificate | None] = [
        State(hidden=hidden, margin=margin) if margin > 0 else None
        for hidden, margin in zip(found.hidden, found.margin.tolist(), strict=True)
    ]
    left = (found.margin <= 0).nonzero()[:, 0].tolist()
    untried = set(left)
    for done, token in enumerate(left):
        if deadline.has_passed:
            break
        fraction = SEARCH_FRACTION + (1 - SEARCH_FRACTION) * done / len(left)
        show(fraction, f"solving: {len(untried)} tokens are open")
        try:
            certificates[token] = decide_token(problem, token, found.rivals[token], deadline)
        except OutOfTime:
            break
        untried.remove(token)
    show(1.0, f"time is up: {len(untried)} tokens are open" if untried else "done")
    return certificates, untried


def _decide_sample(
    problem: Problem, num_sampled: int, deadline: Deadline, show: OnProgress
) -> Certificates:
    """Each token that is drawn is tried with its own vector as the state, then by a program."""
    random = torch.Generator().manual_seed(0)
    drawn = torch.randperm(len(problem.weight), generator=random)[:num_sampled]
    lifted = problem.at_reach(problem.rows[drawn])
    lead, rivals = problem.leads(drawn, lifted, NUM_RIVALS)
    hidden = problem.hidden(lifted, lead)
    margin = margins(problem, drawn, hidden).tolist()
    certificates: list[Certificate | None] = [None] * len(problem.weight)
    untried = set(range(len(certificates)))
    # A token with a state costs nothing more, so those come first.
    for done, i in enumerate(sorted(range(len(drawn)), key=lambda i: margin[i] <= 0), 1):
        token = int(drawn[i])
        if margin[i] > 0:
            certificates[token] = State(hidden=hidden[i], margin=margin[i])
        else:
            try:
                certificates[token] = decide_token(problem, token, rivals[i], deadline)
            except OutOfTime:
                break
        untried.remove(token)
        show(done / len(drawn), f"{done} of {len(drawn)} tokens")
    return certificates, untried


def _verdicts(
    position: list[int], representatives: list[int], biases: list[float], found: Certificates
) -> tuple[TokenVerdict, ...]:
    """What the certificates of the representatives prove of all tokens."""
    certificates, untried = found
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
        proved = certificates[at]
        if not isinstance(proved, Proof):
            return proved
        # The programs count the representatives only.
        return replace(proved, tokens=torch.tensor(representatives)[proved.tokens])

    verdicts = []
    for token, key in enumerate(keys):
        proved = certificate(*key)
        is_untried = proved is None and key[0] in untried
        verdicts.append(
            TokenVerdict(token=token, certificate=proved, group=groups[key], is_untried=is_untried)
        )
    return tuple(verdicts)


def _simple_proof(tokens: list[int], lead: float) -> Proof:
    """By a token of the same vector and a larger bias, or by the token's own bias of −inf."""
    index = torch.tensor(tokens, dtype=torch.long)
    weights = torch.ones(len(tokens), dtype=torch.float64)
    return Proof(tokens=index, weights=weights, lead=lead, is_exact=True)
