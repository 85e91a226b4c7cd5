"""Which words of an audited layer no hidden state makes the most likely, in the time there is.

V words, E embedding size.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.problem import build_problem, margins
from highrank.analysis.unargmaxable.program import decide_word
from highrank.analysis.unargmaxable.result import (
    Deadline,
    OutOfTime,
    Proof,
    State,
    Verdict,
    WordVerdict,
    distinct_words,
    word_verdicts,
)
from highrank.environment import install_hint
from highrank.studies.audit.layer import Layer, Vectors
from highrank.studies.audit.result import ReachabilityFacts, UnreachableWord

OnProgress = Callable[[float, str], None]

# Copies of the words' vectors, in float64, that deciding them takes.
COPIES = 5
# Multiplies of one look at all words, V² E, that a quick audit does: some seconds.
QUICK_MULTIPLIES = 2e10
# Of larger heads it takes so many words. Their programmes, or all of a smaller head, get so long.
QUICK_WORDS, QUICK_SECONDS = 500, 15.0
# With which such a programme begins, and the lead that an inexact proof may leave.
NUM_RIVALS, TOLERANCE = 32, 1e-10
NUM_BETWEEN = 5


def audit_reachability(
    layer: Layer, word: Callable[[int], str], quick: bool, room: int, on_progress: OnProgress
) -> tuple[ReachabilityFacts | None, str]:
    """What is known of all words, or None and why.

    Args:
        word: how a word of the vocabulary is written.
        room: bytes that may be used.
    """
    if layer.vectors is None:
        reason = "no single logit says which word is the most likely"
        return None, f"a mixture's words: not decided, as {reason}"
    if find_spec("scipy") is None:
        return None, f"reachability needs linear programs: {install_hint('audit')}"
    vectors, start = layer.vectors, time.perf_counter()
    V, E = vectors.weight.shape
    if (needed := 8 * COPIES * V * E) > room:
        return None, f"not decided: it would take {needed / 2**30:.1f} GiB of memory"
    if quick and V * V * E > QUICK_MULTIPLIES:
        words = decide_sample(vectors, QUICK_WORDS, QUICK_SECONDS, on_progress)
    else:
        words = decide_words(
            vectors.weight,
            vectors.bias,
            vectors.states,
            seconds=QUICK_SECONDS if quick else None,
            on_progress=on_progress,
        ).words
    return _facts(words, vectors, word, time.perf_counter() - start), ""


def decide_sample(
    vectors: Vectors, num_words: int, seconds: float, on_progress: OnProgress, seed: int = 0
) -> tuple[WordVerdict, ...]:
    """Verdicts on a random sample of the words, against all words; the others are untried.

    Args:
        num_words: that are drawn; each is tried with its own vector as the state.
        seconds: after which linear programmes end.
    """
    weight = vectors.weight.detach().double().contiguous()
    bias = weight.new_zeros(len(weight)) if vectors.bias is None else vectors.bias.double()
    distinct = distinct_words(weight, bias)
    leaders = distinct.leaders
    problem = build_problem(weight[leaders], bias[leaders], vectors.states)
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(leaders), generator=random)[:num_words]
    reach = vectors.states.reach(weight.shape[1])
    norm = problem.rows[drawn].norm(dim=1, keepdim=True).clamp_min(1e-30)
    lifted = vectors.states.project(problem.rows[drawn] * (reach / norm))
    lead, rivals = problem.leads(drawn, lifted, NUM_RIVALS)
    hidden = problem.hidden(lifted, lead)
    margin = margins(problem.weight, problem.bias, vectors.states, drawn, hidden).tolist()
    certificates: list[State | Proof | None] = [None] * len(leaders)
    untried = set(range(len(leaders)))
    deadline = Deadline(seconds)
    # A word with a state costs nothing more, so those come first.
    order = sorted(range(len(drawn)), key=lambda i: margin[i] <= 0)
    for done, i in enumerate(order):
        position = int(drawn[i])
        if margin[i] > 0:
            certificates[position] = State(hidden=hidden[i], margin=margin[i])
        else:
            try:
                found = decide_word(problem, position, rivals[i], TOLERANCE, deadline)
            except OutOfTime:
                break
            certificates[position] = found
        untried.remove(position)
        on_progress((done + 1) / len(order), f"{done + 1} of {len(order)} words")
    return word_verdicts(bias, distinct, certificates, untried)


def _facts(
    words: tuple[WordVerdict, ...], vectors: Vectors, word: Callable[[int], str], elapsed: float
) -> ReachabilityFacts:
    by_verdict: dict[Verdict, list[WordVerdict]] = {verdict: [] for verdict in Verdict}
    for verdict in words:
        by_verdict[verdict.verdict].append(verdict)
    num_tied, num_untried = len(by_verdict[Verdict.TIED]), sum(v.is_untried for v in words)
    return ReachabilityFacts(
        states=vectors.description,
        num_reachable=len(by_verdict[Verdict.REACHABLE]) + num_tied,
        num_tied=num_tied,
        num_unreachable=len(by_verdict[Verdict.UNREACHABLE]),
        num_undecided=len(by_verdict[Verdict.UNDECIDED]) - num_untried,
        num_untried=num_untried,
        unreachable=tuple(_unreachable(v, word) for v in by_verdict[Verdict.UNREACHABLE]),
        elapsed=elapsed,
    )


def _unreachable(verdict: WordVerdict, word: Callable[[int], str]) -> UnreachableWord:
    proof = verdict.certificate
    assert isinstance(proof, Proof), verdict
    heaviest = proof.weights.argsort(descending=True)[:NUM_BETWEEN]
    return UnreachableWord(
        word=word(verdict.word),
        index=verdict.word,
        is_exact=proof.is_exact,
        # Forbidden words have −inf, which JSON cannot say.
        lead=max(proof.lead, -1e308),
        between=tuple(word(index) for index in proof.words[heaviest].tolist()),
    )
