"""Words that no hidden state can make the most likely.

A word whose vector lies inside the convex hull of the others' never leads, whatever the network
before the head has understood: Demeter et al. (2020), https://aclanthology.org/2020.acl-main.198,
Grivas et al. (2022), https://aclanthology.org/2022.acl-long.456. `decide_words` decides every word
of a linear head: most by `search` (a state that makes the word lead), the rest by `programme`
(linear programmes, solved by HiGHS). No verdict is given without a certificate that passed `check`.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank.analysis.unargmaxable.problem import Problem, build_problem
from highrank.analysis.unargmaxable.program import MAX_SIZE, check_scipy, decide_word, inside, prove
from highrank.analysis.unargmaxable.result import (
    Deadline,
    OutOfTime,
    Proof,
    Reachability,
    State,
    distinct_words,
    word_verdicts,
)
from highrank.analysis.unargmaxable.search import search_states
from highrank.analysis.unargmaxable.states import Everywhere, States

# The share of the progress that the search is given.
SEARCH_SHARE = 0.2


def decide_words(
    weight: Tensor,
    bias: Tensor | None = None,
    states: States | None = None,
    *,
    tolerance: float = 1e-10,
    seconds: float | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> Reachability:
    """For each word, whether some state h gives it the only greatest of the logits W h + b.

    Args:
        weight: (V, E), in any precision: its numbers are taken as they are.
        bias: (V,), or None for zeros; −inf forbids a word.
        states: the states that there are (see `states`), all of R^E if None.
        tolerance: the lead, relative to the size of logits, that may be left by a proof which
            rounding keeps from being exact; each proof says whether it is.
        seconds: after which no more is tried: words without a certificate are then undecided. The
            set-up and checks of what was found are not cut short. No limit if None.
    """
    check_scipy()
    deadline = Deadline(seconds)
    start = time.perf_counter()
    matrix, offset = _head(weight, bias)
    distinct = distinct_words(matrix, offset)
    leaders = distinct.leaders
    problem = build_problem(matrix[leaders], offset[leaders], states or Everywhere())
    if len(leaders) == 1:
        found = _Certificates([_alone(problem)], num_searched=1)
    else:
        found = _decide(problem, tolerance, deadline, on_progress)
    return Reachability(
        words=word_verdicts(offset, distinct, found.certificates, found.untried),
        num_searched=found.num_searched,
        num_inside=found.num_inside,
        num_programmes=found.num_programmes,
        elapsed=time.perf_counter() - start,
    )


def _head(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
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
        raise ValueError("bias must be finite for at least one word, got −inf for all")
    return matrix, offset


def _alone(problem: Problem) -> State:
    """All words that are possible at all have the same vector: any state will do."""
    hidden = problem.states.project(torch.zeros_like(problem.rows))[0, :-1]
    return State(hidden=hidden, margin=math.inf)


@dataclass
class _Certificates:
    """One for each distinct vector, and how many came in which way."""

    certificates: list[State | Proof | None]
    num_searched: int
    num_inside: int = 0
    num_programmes: int = 0
    untried: frozenset[int] = frozenset()
    """Those without one for lack of time."""


def _decide(
    problem: Problem,
    tolerance: float,
    deadline: Deadline,
    on_progress: Callable[[float, str], None] | None,
) -> _Certificates:
    def report(share: float, text: str) -> None:
        if on_progress is not None:
            on_progress(share, text)

    found = search_states(problem, lambda share, text: report(share * SEARCH_SHARE, text), deadline)
    certificates: list[State | Proof | None] = [
        State(hidden=hidden, margin=margin) if margin > 0 else None
        for hidden, margin in zip(found.hidden, found.margin.tolist(), strict=True)
    ]
    left = (found.margin <= 0).nonzero()[:, 0]
    result = _Certificates(certificates, num_searched=len(certificates) - len(left))
    num_left, is_flat = len(left), problem.weight.size(1) <= MAX_SIZE
    while len(left) > 0 and not deadline.has_passed:
        share = SEARCH_SHARE + (1 - SEARCH_SHARE) * (1 - len(left) / num_left)
        report(share, f"solving: {len(left)} words are open")
        word = int(left[0])
        result.num_programmes += 1
        try:
            certificate = decide_word(problem, word, found.rivals[word], tolerance, deadline)
        except OutOfTime:
            break
        certificates[word], left = certificate, left[1:]
        if isinstance(certificate, Proof) and len(left) > 0 and is_flat:
            for other, weights in zip(*inside(problem, certificate.words, left), strict=True):
                if deadline.has_passed:
                    break
                proof = prove(problem, int(other), certificate.words, weights, tolerance)
                if proof is not None:
                    certificates[other] = proof
                    left = left[left != other]
                    result.num_inside += 1
    result.untried = frozenset(left.tolist())
    report(1.0, f"time is up: {len(result.untried)} words are open" if result.untried else "done")
    return result
