"""Tokens that an audit points out: those that can never be the most likely, and under-trained ones.

V vocabulary, E embedding size.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from highrank.analysis.unargmaxable import TokenVerdict, Verdict, decide_tokens
from highrank.analysis.unargmaxable.certificate import Proof
from highrank.analysis.unargmaxable.problem import Box
from highrank.analysis.undertrained import Closeness, undertrained
from highrank.environment import install_hint
from highrank.heads import Head, MixtureHead
from highrank.heads.linear import LinearHead
from highrank.progress import OnProgress
from highrank.studies.audit.layer import Vectors
from highrank.studies.audit.model import AuditedModel

# Tokens of a proof that are named.
NUM_BETWEEN = 5
MOST_UNDERTRAINED = 200
# Copies of the output embedding, in float64, that deciding its tokens takes.
COPIES = 5
# Multiplies of one look at all tokens, V² E, that a quick audit does: some seconds.
QUICK_MULTIPLIES = 2e10
# Tokens of larger heads that it samples. These, or all of a smaller head, get so long.
QUICK_SAMPLE, QUICK_SECONDS = 500, 15.0


@dataclass(frozen=True, kw_only=True)
class UnargmaxableToken:
    token: str
    index: int
    """In the vocabulary."""
    is_exact: bool
    """Whether the proof leaves no rounding error at all."""
    lead: float
    """In no state does the token lead by more than this: at most 0 for an exact proof."""
    between: tuple[str, ...]
    """The heaviest of the tokens whose mean it is, at most five; empty if the token is
    forbidden."""


@dataclass(frozen=True, kw_only=True)
class UnargmaxableFacts:
    """Which tokens some hidden state makes the most likely; the counts add up to V."""

    states: str
    """Which hidden states were allowed, in words."""
    num_argmaxable: int
    """A state was found and checked, tokens that always tie with others included."""
    num_tied: int
    """Argmaxable tokens that share vector and bias with another token."""
    num_unargmaxable: int
    """Proved."""
    num_undecided: int
    """Too close to call."""
    num_untried: int
    """Left without a verdict for lack of time: 0 unless `--quick`."""
    unargmaxable: tuple[UnargmaxableToken, ...]
    """All of them, in the order of the vocabulary."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class UndertrainedToken:
    token: str
    index: int
    """In the vocabulary."""
    score: float
    """By the measure."""
    num_seen: int
    """How often it occurs in the audited text."""


@dataclass(frozen=True, kw_only=True)
class UndertrainedFacts:
    """Tokens whose vectors lie where those of tokens lie that never occur."""

    measure: Closeness
    num_unused: int
    """Tokens that are known never to occur: in the training text, or in any for lack of a name."""
    limit: float
    """Scores up to this count."""
    num_undertrained: int
    """Other tokens within the limit."""
    undertrained: tuple[UndertrainedToken, ...]
    """At most 200, the least trained first."""


def audit_unargmaxable(
    vectors: Vectors | None,
    token: Callable[[int], str],
    quick: bool,
    budget: int,
    on_progress: OnProgress,
) -> tuple[UnargmaxableFacts | None, str]:
    """Which tokens can be the most likely, or None and why.

    Args:
        token: the text of a token.
        budget: bytes that may be used.
    """
    if vectors is None:
        return None, "not decided, as no single logit decides which token is the most likely"
    if find_spec("scipy") is None:
        return None, f"not decided, as linear programs need scipy: {install_hint('cli')}"
    V, E = vectors.weight.shape
    if (needed := 8 * COPIES * V * E) > budget:
        return None, f"not decided, as it would take {needed / 2**30:.1f} GiB of memory"
    start = time.perf_counter()
    found = decide_tokens(
        vectors.weight,
        vectors.bias,
        vectors.states,
        num_sampled=QUICK_SAMPLE if quick and V * V * E > QUICK_MULTIPLIES else None,
        seconds=QUICK_SECONDS if quick else None,
        on_progress=on_progress,
    )
    counts = Counter(verdict.verdict for verdict in found)
    num_untried = sum(verdict.is_untried for verdict in found)
    states = f"all vectors of {E:,} numbers"
    if isinstance(vectors.states, Box):
        bound = vectors.states.bound
        states = f"all states between -{bound:g} and {bound:g} in each number"
    facts = UnargmaxableFacts(
        states=states,
        num_argmaxable=counts[Verdict.ARGMAXABLE] + counts[Verdict.TIED],
        num_tied=counts[Verdict.TIED],
        num_unargmaxable=counts[Verdict.UNARGMAXABLE],
        num_undecided=counts[Verdict.UNDECIDED] - num_untried,
        num_untried=num_untried,
        unargmaxable=tuple(
            _token(verdict, token) for verdict in found if verdict.verdict is Verdict.UNARGMAXABLE
        ),
        elapsed=time.perf_counter() - start,
    )
    return facts, ""


def _token(verdict: TokenVerdict, token: Callable[[int], str]) -> UnargmaxableToken:
    proof = verdict.certificate
    assert isinstance(proof, Proof), verdict
    heaviest = proof.weights.argsort(descending=True)[:NUM_BETWEEN]
    return UnargmaxableToken(
        token=token(verdict.token),
        index=verdict.token,
        is_exact=proof.is_exact,
        # Forbidden tokens have −inf, which JSON cannot express.
        lead=max(proof.lead, -1e308),
        between=tuple(token(index) for index in proof.tokens[heaviest].tolist()),
    )


def audit_undertrained(head: Head, model: AuditedModel) -> UndertrainedFacts | None:
    """Tokens that training has hardly reached, by their vectors alone."""
    V = head.vocab_size
    if not isinstance(head, MixtureHead | LinearHead) or len(head.weight) != V:
        return None
    unused = [index for index in model.unused if index < V]
    found = undertrained(head.weight, unused)
    values = found.values.clone()
    values[unused] = float("inf")
    order = values.argsort()[: int((values <= found.limit).sum())].tolist()
    counts = np.bincount(np.asarray(model.tokens), minlength=V)
    return UndertrainedFacts(
        measure=found.measure,
        num_unused=len(unused),
        limit=found.limit,
        num_undertrained=len(order),
        undertrained=tuple(
            UndertrainedToken(
                token=model.model.token(index),
                index=index,
                score=values[index].item(),
                num_seen=int(counts[index]),
            )
            for index in order[:MOST_UNDERTRAINED]
        ),
    )
