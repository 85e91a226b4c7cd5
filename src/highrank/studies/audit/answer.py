"""Whether the bound of one softmax limits a model: yes, no or cannot tell, and why.

One softmax over d numbers has log-probabilities of rank at most b = d + 1, or d + 2 with a bias.
That rank alone answers nothing: random weights reach it, too. What counts is how many of the b
directions carry weight. Most of it is in one direction, the mean of all predictions, which leaves
about a hundredth to the others: the effective rank at 10⁻³ has what matters most of the rest, and
the one at 10⁻⁴ nearly all of it. The first rule that applies decides.

1. Cannot tell, if the model has not learned to predict this text: its perplexity is near V, or
   hardly better than with shuffled contexts.
2. No, if d numbers can express any distribution over the vocabulary: d ≥ V - 1.
3. No, if it is a mixture whose components have specialised: it has no such bound.
4. Yes, if the effective rank at 10⁻⁴ is at least nine tenths of b, or b - 1: the spectrum is cut
   off at the bound, with weight right up to it. A softcap or a mixture that has not specialised has
   no exact bound: only a mixture that predicts as one softmax does can get this answer, for others
   it is cannot tell.
5. Cannot tell, if the effective rank at 10⁻³ is at most half of b, or the numerical rank not at the
   bound in the sense of 4: directions are left that the model does not use, but LSTMs of such
   spectra have won a tenth of their perplexity with a mixture (docs/log.md), so that this is no
   "no". Of fewer than 2b contexts, the effective rank is first continued to 2b of them at the rate
   at which it grew with the last doubling.
6. Cannot tell otherwise: in between, or with fewer than b contexts or tokens.

Yes does not mean that a head of higher rank would predict better: only training one shows that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from highrank.analysis.components import COLLAPSED, ComponentReport, MixtureState
from highrank.analysis.rank import rank_bound
from highrank.studies.audit.layer import HeadFacts
from highrank.studies.audit.model import TextFacts
from highrank.studies.audit.rank import RankFacts

# The effective ranks of the rule: of what matters most, and of nearly all.
EFFECTIVE, FINE = "effective_rank_1e-3", "effective_rank_1e-4"
# A perplexity of at least this fraction of V is that of a guess, and one that is better than with
# shuffled contexts by no more than so many nats makes no use of its contexts.
GUESS_FRACTION, CONTEXT_NATS = 0.8, 0.05
# Fractions of the bound: well below it, and at it.
WELL_BELOW, AT_BOUND = 0.5, 0.9


class Limited(StrEnum):
    """Whether the bound of one softmax limits a model."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    @property
    def text(self) -> str:
        """The printed form."""
        return "cannot tell" if self is Limited.UNKNOWN else str(self)


@dataclass(frozen=True, kw_only=True)
class Answer:
    verdict: Limited
    sentence: str
    """Begins with yes, no or cannot tell."""


def answer_of(
    head: HeadFacts, text: TextFacts, rank: RankFacts, mixture: ComponentReport | None
) -> Answer:
    """The rule above, applied to what was measured."""
    V, d = head.vocab_size, head.context_size
    if untrained := _untrained(V, text):
        collapsed = mixture is not None and mixture.state is MixtureState.COLLAPSED
        return _cannot_tell(untrained + (f"; {_state(mixture)}" if mixture and collapsed else ""))
    if d >= V - 1:
        return _no(f"{d:,} numbers can express any distribution over {V:,} tokens")
    bound = rank.bound or rank_bound(d, has_bias=head.has_bias).value
    assert bound is not None
    found = rank.numerical_rank
    if rank.bound is None and mixture is not None and mixture.state is MixtureState.SPECIALISED:
        return _no(
            f"the {head.num_components} components have specialised ({mixture.information}), so "
            f"that no bound holds: numerical rank {_count(found)}, where one softmax of this size "
            f"has at most {bound:,}"
        )
    is_impossible = rank.bound is not None and found is not None and found > rank.bound
    if rank.measures[EFFECTIVE] is None or is_impossible:
        return _cannot_tell(
            f"the measured rank, {_count(found)} of at most {bound:,}, cannot be trusted"
        )
    return _by_spectrum(_situation(head, rank, mixture, bound), rank, mixture, bound)


def _untrained(vocab_size: int, text: TextFacts) -> str:
    """Why the model has not learned to predict this text; empty if it has."""
    if text.perplexity >= GUESS_FRACTION * vocab_size:
        return (
            f"the model is random or untrained, or this is no text for it: its perplexity, "
            f"{text.perplexity:,.0f}, is no better than that of a guess among {vocab_size:,} tokens"
        )
    if text.shuffled_nats - text.nats <= CONTEXT_NATS:
        return (
            f"the model has hardly learned to use its contexts: its perplexity is "
            f"{text.perplexity:,.1f}, and {text.shuffled_perplexity:,.1f} with shuffled contexts"
        )
    return ""


def joint_answer(names: Sequence[str], answers: Sequence[Answer]) -> str:
    """The sentence of one model, or which of several have which answer."""
    if len(answers) == 1:
        return answers[0].sentence
    found = by_verdict(names, answers).items()
    parts = "; ".join(f"{verdict} for {', '.join(listed)}" for verdict, listed in found)
    return f"{question(len(answers))} {parts[0].upper()}{parts[1:]}."


def question(num_models: int) -> str:
    """The question that is answered."""
    which = "this model" if num_models == 1 else "these models"
    return f"Does the bound of one softmax limit {which}?"


def by_verdict(names: Sequence[str], answers: Sequence[Answer]) -> dict[str, list[str]]:
    """The names of the models with each verdict, as it is printed, of those that some have."""
    pairs = list(zip(names, answers, strict=True))
    found = {v.text: [name for name, answer in pairs if answer.verdict is v] for v in Limited}
    return {text: listed for text, listed in found.items() if listed}


def _by_spectrum(
    situation: str, rank: RankFacts, mixture: ComponentReport | None, bound: int
) -> Answer:
    """Rules 4 to 6, for this bound."""
    size = min(rank.num_contexts, rank.num_tokens)
    fine, later = rank.measures[FINE] or 0.0, continued(rank, 2 * bound)
    if size >= bound and _is_at(bound, fine):
        text = f"{situation}; effective rank at 10⁻⁴ is {fine:,.0f}"
        if rank.bound is None and (mixture is None or mixture.specialisation >= COLLAPSED):
            return _cannot_tell(f"{text}: the model is past what one softmax can do")
        reason = "the spectrum is cut off at the bound, with weight right up to it"
        return Answer(verdict=Limited.YES, sentence=f"Yes: {text}: {reason}.")
    text = f"{situation}; effective rank at 10⁻³ is {rank.measures[EFFECTIVE]:,.0f}"
    if size < 2 * bound:
        text += f", and would be about {later:,.0f} of {2 * bound:,} contexts"
    is_unused = size >= 2 * bound and not _is_at(bound, rank.numerical_rank or bound)
    if later <= WELL_BELOW * bound or is_unused:
        return _cannot_tell(
            f"{text}, well below it, and yet a mixture may win: `highrank compare` or "
            "`highrank finetune` tells"
        )
    if size < bound:
        limited = "contexts (--contexts)" if rank.num_contexts < bound else "tokens (free memory)"
        return _cannot_tell(f"{text}: take more {limited}")
    return _cannot_tell(f"{text}: neither well below the bound nor at it")


def _is_at(bound: int, rank: float) -> bool:
    """Whether a rank is at its bound, where one direction may always be missing.

    The last one of a model with a LayerNorm has hardly any weight, which counts if b is below 10.
    """
    return rank >= min(AT_BOUND * bound, bound - 1)


def continued(rank: RankFacts, num_contexts: int) -> float:
    """The effective rank of so many contexts, if it grows on as with the last doubling."""
    effective, size = rank.measures[EFFECTIVE] or 0.0, min(rank.num_contexts, rank.num_tokens)
    before = rank.growth[-2].measures[EFFECTIVE] if len(rank.growth) > 1 else None
    if size >= num_contexts:
        return effective
    if not before:
        return float(num_contexts)
    doublings = math.log2(num_contexts / size)
    return effective * float((effective / before) ** doublings)


def _situation(
    head: HeadFacts, rank: RankFacts, mixture: ComponentReport | None, bound: int
) -> str:
    """The clause before the effective rank."""
    if rank.bound is not None:
        if rank.numerical_rank is None:
            return f"the rank is at most {bound:,}"
        used = "used up" if _is_at(bound, rank.numerical_rank) else "not used up"
        return f"rank {rank.numerical_rank:,.0f} of at most {bound:,} is {used}"
    text = "no bound is known for this head"
    if mixture is not None:
        text = _state(mixture)
    elif head.softcap is not None:
        text = "logits are soft-capped, so that no exact bound holds"
    return f"{text}, and one softmax of this size has rank at most {bound:,}"


def _state(mixture: ComponentReport) -> str:
    return (
        f"the components have {mixture.state_text} ({mixture.state_reason}: {mixture.information})"
    )


def _count(rank: float | None) -> str:
    return "unknown" if rank is None else f"{rank:,.0f}"


def _no(reason: str) -> Answer:
    return Answer(verdict=Limited.NO, sentence=f"No: {reason}.")


def _cannot_tell(reason: str) -> Answer:
    return Answer(verdict=Limited.UNKNOWN, sentence=f"Cannot tell: {reason}.")
