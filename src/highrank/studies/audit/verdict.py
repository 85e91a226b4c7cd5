"""What an audit found, in plain words: read from the numbers, so that the words stay true."""

import math
from collections.abc import Sequence

from highrank.analysis.components import ALIKE
from highrank.report.formats import listed
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.result import MixtureFacts, ModelAudit, RankFacts
from highrank.studies.audit.table import count, divergence

# The share of the sum of squares that the words speak of.
EPSILON = 1e-3
# A rank this close to the highest that could be seen says more about the measurement.
NEAR = 0.9
CEILINGS = {"contexts": "the number of contexts", "words": "the number of words in the matrix"}


def model_verdict(model: ModelAudit) -> str:
    """Rank, reachable words and mixture of one model, a sentence or two for each."""
    head = model.head
    kind = HEAD_NAMES.get(head.kind, head.kind)
    size = f"d = {head.context_size}" + (f", K = {head.num_components}" if model.mixture else "")
    parts = [
        f"{kind} with {size} over {head.vocab_size:,} words.",
        rank_verdict(model.rank, head.vocab_size),
    ]
    parts += [effective_verdict(model.rank), reachability_verdict(model)]
    if model.mixture is not None:
        parts.append(mixture_verdict(model.mixture))
    return " ".join(filter(None, parts))


def rank_verdict(rank: RankFacts, vocab_size: int) -> str:
    """The comparable rank, beside the highest that it could have been."""
    if rank.comparable is None:
        return f"Its rank is unknown: {rank.unknown}."
    value = count(rank.comparable)
    if rank.bound is not None and rank.comparable > rank.bound:
        return (
            f"Its rank reads {value}, above the {count(rank.bound)} that its form allows. That "
            "cannot be: do not trust this measurement."
        )
    if rank.ceiling_reason == "bound":
        if rank.comparable == rank.bound:
            return f"Its rank is {value}, the highest that its form allows ({rank.bound_reason})."
        return f"Its rank is {value}; its form allows {count(rank.bound)} ({rank.bound_reason})."
    known = "No bound on it is known" if rank.bound is None else f"Its form allows {rank.bound:,}"
    text = (
        f"Its rank is {value}; {CEILINGS[rank.ceiling_reason]} allows {count(rank.ceiling)} here. "
    )
    has_all_words = rank.ceiling_reason == "words" and rank.num_words == vocab_size
    if rank.comparable >= NEAR * rank.ceiling and not has_all_words:
        return f"{text}{known}: with more {rank.ceiling_reason} it may be higher."
    return f"{text}{known}."


def effective_verdict(rank: RankFacts) -> str:
    """How few directions carry nearly everything."""
    found = {e.epsilon: e.rank for e in rank.effective}.get(EPSILON)
    if found is None:
        return ""
    verb = "direction carries" if found == 1 else "directions carry"
    return f"{count(found)} {verb} all but {EPSILON:.1%} of the sum of squares."


def reachability_verdict(model: ModelAudit) -> str:
    """How many words can never be the most likely, and of how many it is not known."""
    facts = model.reachability
    if facts is None:
        return ""
    if facts.num_unreachable:
        can = "word can" if facts.num_unreachable == 1 else "words can"
        share = f"{facts.num_unreachable / model.head.vocab_size:.2%} of all"
        if facts.num_undecided or facts.num_untried:
            share = f"at least {share}"
        text = f"{count(facts.num_unreachable)} {can} never be the most likely one ({share})"
    else:
        text = "No word was found that can never be the most likely one"
    if facts.num_undecided:
        text += f"; too close to call: {count(facts.num_undecided)}"
    if facts.num_untried:
        text += f"; left for lack of time: {count(facts.num_untried)}"
    if facts.num_unreachable or facts.num_undecided or facts.num_untried:
        return f"{text}."
    return "Every word can be the most likely one."


def mixture_verdict(mixture: MixtureFacts) -> str:
    """Whether the components are used, and whether they differ."""
    dead = [k for k, component in enumerate(mixture.components, 1) if component.is_dead]
    total = len(mixture.components)
    if dead:
        text = f"{len(dead)} of its {total} components {'is' if len(dead) == 1 else 'are'} dead: "
        text += f"{listed(dead)}."
    else:
        text = f"All {total} components are used."
    text += f" In a typical context about {math.exp(mixture.weight_entropy):.1f} of them speak."
    if mixture.specialisation < ALIKE:
        return f"{text} They say nearly the same: the mixture is close to one softmax."
    return f"{text} Which one speaks tells {mixture.specialisation:.2f} nats about the word."


def comparison(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    """What two or more models have in common and what not; empty for one."""
    if len(models) < 2:
        return ""
    apart = [f"{name} {divergence(model)}" for name, model in zip(names, models, strict=True)]
    sentences = [_ranks_beside(names, models)]
    if len({(m.rank.num_contexts, m.rank.num_words) for m in models}) > 1:
        sentences.append("These ranks are of matrices of different sizes.")
    sentences.append(f"Divergence, in nats: {listed(apart)}.")
    texts = {(m.text.tokens_sha256, m.text.num_contexts, m.head.vocab_size) for m in models}
    if len(texts) == 1:
        said = [
            f"{name} {model.text.perplexity:,.2f} ({millions(model.num_parameters)} parameters)"
            for name, model in zip(names, models, strict=True)
        ]
        sentences.append(f"Perplexity after the same contexts: {listed(said)}.")
    else:
        sentences.append(
            "Their texts or vocabularies differ, so that perplexities cannot be compared, and "
            "ranks only with care."
        )
    return " ".join(filter(None, sentences))


def millions(number: int) -> str:
    return f"{number / 1e6:,.2f}\u00a0M" if number >= 1e5 else f"{number:,}"


def _ranks_beside(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    known = [
        (model.rank.comparable, name)
        for name, model in zip(names, models, strict=True)
        if model.rank.comparable
    ]
    if len(known) < 2:
        return ""
    most = max(rank for rank, _ in known)
    first = [name for rank, name in known if rank == most]
    others = [f"{most / rank:.3g} × that of {name}" for rank, name in known if rank < most]
    if not others:
        return f"All have the rank {count(most)}."
    verb = "has" if len(first) == 1 else "have"
    return f"{listed(first)} {verb} the highest rank: {listed(others)}."
