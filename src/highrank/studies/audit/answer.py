"""Whether the bound of one softmax limits a model: yes, no or cannot tell, and why.

One softmax over d numbers has log-probabilities of rank at most b = d + 1, or d + 2 with a bias.
No spectrum says what that costs: nearly all of it is the mean of all predictions, and a model whose
effective rank is far below b can win a tenth of its perplexity with a mixture (docs/log.md). What
is fitted to its hidden states says more. The first rule that applies decides.

1. Cannot tell, if the model has not learned to predict this text: its perplexity is near V, or
   hardly better than with shuffled contexts.
2. No, if d numbers can express any distribution over the vocabulary: d ≥ V - 1.
3. No, if it is a mixture whose components have specialised: it has no such bound.
4. With a fit (`fit.py`), of which two standard errors are taken off or added:
   yes, if a mixture of softmaxes wins at least `LIMITED` over every head that has the bound, after
   at least `LEAST_STEPS`;
   no, if it wins at most `FREE`, and the model's own head was at its optimum: what the mixture wins
   over that is within `SETTLED` of nothing, after at least `ENOUGH_STEPS`.
5. Cannot tell otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from highrank.analysis.components import ComponentReport, MixtureState
from highrank.analysis.rank import rank_bound
from highrank.studies.audit.fit import FitFacts
from highrank.studies.audit.layer import HeadFacts
from highrank.studies.audit.model import Source, TextFacts
from highrank.studies.audit.rank import RankFacts

# The effective ranks that are compared with those of random weights, the first in the sentence.
EFFECTIVE, FINE = "effective_rank_1e-3", "effective_rank_1e-4"
# A perplexity of at least this fraction of V is that of a guess, and one that is better than with
# shuffled contexts by no more than so many nats makes no use of its contexts.
GUESS_FRACTION, CONTEXT_NATS = 0.8, 0.05
# What a fit wins, in nats per token. The first was chosen on half of the models of
# benchmarks/audit_rules.py; the others are what their errors allow.
LIMITED, FREE, SETTLED = 0.011, 0.004, 0.01
# A fit that ends earlier for lack of time means little: for a yes and for a no.
LEAST_STEPS, ENOUGH_STEPS = 100, 300
# A rank is at its bound from this fraction on.
AT_BOUND = 0.9

# What trains a mixture beside one softmax.
TRAINED = {
    Source.RUN: "`highrank compare` trains both, and tells",
    Source.HUGGING_FACE: "`highrank finetune` trains both, and tells",
}


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
    headline: str
    """At most twelve words; begins with yes, no or cannot tell."""
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        return f"{self.headline} {self.reason}"


def answer_of(
    head: HeadFacts,
    text: TextFacts,
    rank: RankFacts,
    mixture: ComponentReport | None,
    fit: FitFacts | None = None,
    fit_note: str = "",
    source: Source = Source.RUN,
) -> Answer:
    """The rule above, applied to what was measured.

    Args:
        fit_note: why there is no fit.
        source: of the model; decides which command trains it further.
    """
    V, d = head.vocab_size, head.context_size
    if untrained := _untrained(V, text):
        collapsed = mixture is not None and mixture.state is MixtureState.COLLAPSED
        reason = untrained + (f"; {_state(mixture)}" if mixture and collapsed else "")
        return _answer(Limited.UNKNOWN, "the model has not learned to predict this text", reason)
    if d >= V - 1:
        reason = f"{d:,} numbers can express any distribution over {V:,} tokens"
        return _answer(Limited.NO, "one softmax of this size can express everything", reason)
    bound = rank.bound or rank_bound(d, has_bias=head.has_bias).value
    assert bound is not None
    found = rank.numerical_rank
    if rank.bound is None and mixture is not None and mixture.state is MixtureState.SPECIALISED:
        reason = (
            f"the {head.num_components} components have specialised ({mixture.information}), so "
            f"that no bound holds: numerical rank {_count(found)}, where one softmax of this size "
            f"has at most {bound:,}"
        )
        return _answer(Limited.NO, "this mixture has no such bound", reason)
    if fit is not None:
        return _by_fit(fit, TRAINED[source])
    is_impossible = rank.bound is not None and found is not None and found > rank.bound
    if rank.measures[EFFECTIVE] is None or is_impossible:
        reason = f"the rank was measured as {_count(found)} of at most {bound:,}"
        return _answer(Limited.UNKNOWN, "the measured rank cannot be trusted", reason)
    situation, effective = _situation(head, rank, mixture, bound), rank.measures[EFFECTIVE]
    reason = (
        f"{situation}; effective rank at 10⁻³ is {effective:,.0f}, and yet a mixture may win or "
        f"not; {fit_note or 'no heads were fitted'}: {TRAINED[source]}"
    )
    return _answer(Limited.UNKNOWN, "a spectrum alone does not say what a mixture wins", reason)


def _untrained(vocab_size: int, text: TextFacts) -> str:
    """Why the model has not learned to predict this text; empty if it has."""
    if text.perplexity >= GUESS_FRACTION * vocab_size:
        return (
            f"it is random or untrained, or this is no text for it: its perplexity, "
            f"{text.perplexity:,.0f}, is no better than that of a guess among {vocab_size:,} tokens"
        )
    if text.shuffled_nats - text.nats <= CONTEXT_NATS:
        return (
            f"it has hardly learned to use its contexts: its perplexity is "
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


def joint_headline(names: Sequence[str], answers: Sequence[Answer]) -> str:
    """At most twelve words: the names, or their number where they are many."""
    if len(answers) == 1:
        return answers[0].headline
    found = by_verdict(names, answers).items()
    shown = "; ".join(
        f"{verdict} for {', '.join(listed) if len(names) <= 4 else len(listed)}"
        for verdict, listed in found
    )
    return f"{shown[0].upper()}{shown[1:]}."


def question(num_models: int) -> str:
    """The question that is answered."""
    which = "this model" if num_models == 1 else "these models"
    return f"Does the bound of one softmax limit {which}?"


def by_verdict(names: Sequence[str], answers: Sequence[Answer]) -> dict[str, list[str]]:
    """The names of the models with each verdict, as it is printed, of those that some have."""
    pairs = list(zip(names, answers, strict=True))
    found = {v.text: [name for name, answer in pairs if answer.verdict is v] for v in Limited}
    return {text: listed for text, listed in found.items() if listed}


def fit_verdict(
    gain: float, error: float, over_own: float, num_steps: int, limited: float = LIMITED
) -> Limited:
    """Rule 4, with what the mixture wins over the best bounded head and over the model's own."""
    if gain - 2 * error >= limited and num_steps >= LEAST_STEPS:
        return Limited.YES
    is_settled = abs(over_own) <= SETTLED and num_steps >= ENOUGH_STEPS
    return Limited.NO if gain + 2 * error <= FREE and is_settled else Limited.UNKNOWN


FIT_HEADLINES = {
    Limited.YES: "a mixture of softmaxes predicts this text better",
    Limited.NO: "a mixture of softmaxes wins nothing here",
    Limited.UNKNOWN: "heads fitted for a minute do not decide it",
}


def _by_fit(fit: FitFacts, trained: str) -> Answer:
    verdict = fit_verdict(fit.gain, fit.error, fit.over_own, fit.num_steps)
    won = fit.nats - min(fit.softmax_nats, fit.moc_nats, fit.mos_nats)
    if verdict is Limited.UNKNOWN and won < -SETTLED:
        reason = (
            f"fitted to {fit.num_fitted:,} contexts, the best of them predicts held-out text "
            f"{better(won)}: they have learned this sample, and say nothing about the bound; "
            f"{trained}"
        )
        return _answer(verdict, "all fitted heads predict worse than the model's own", reason)
    where = f"{fit.part}," if fit.part else ""
    reason = (
        f"fitted to the same hidden states, {fit.num_components} softmaxes{where} predict "
        f"held-out text {better(fit.gain, fit.error)} than the best head with the bound, and "
        f"{better(fit.over_own)} than the model's own"
    )
    if verdict is Limited.UNKNOWN and fit.num_steps < ENOUGH_STEPS:
        reason += f", after {fit.num_steps} steps only"
    if verdict is Limited.UNKNOWN:
        reason += f": {trained}"
    return _answer(verdict, FIT_HEADLINES[verdict], reason)


def better(nats: float, error: float | None = None) -> str:
    """How much lower a perplexity is, or higher."""
    percent = f"{abs(100 * math.expm1(-nats)):.1f}"
    if error is not None:
        percent += f"\u00a0±\u00a0{100 * error:.1f}"
    return f"{percent}\u00a0% {'worse' if nats < 0 else 'better'}"


def _is_at(bound: int, rank: float) -> bool:
    """Whether a rank is at its bound, where one direction may always be missing.

    The last one of a model with a LayerNorm has hardly any weight, which counts if b is below 10.
    """
    return rank >= min(AT_BOUND * bound, bound - 1)


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


def _answer(verdict: Limited, headline: str, reason: str) -> Answer:
    return Answer(
        verdict=verdict,
        headline=f"{verdict.text.capitalize()}: {headline}.",
        reason=f"{reason[0].upper()}{reason[1:]}.",
    )
