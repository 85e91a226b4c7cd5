"""What an audit found, in sentences that are read off the numbers."""

import math
from collections.abc import Sequence

from highrank.analysis.components import COLLAPSED, ComponentReport
from highrank.report.formats import listed
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.result import ModelAudit, RankFacts
from highrank.studies.audit.table import count, divergence

# The effective rank that sentences and charts show.
EFFECTIVE, EPSILON = "effective_rank_1e-3", 1e-3
# A rank this close to the ceiling may be limited by the measurement.
NEAR = 0.9
CEILINGS = {"contexts": "the number of contexts", "tokens": "the number of tokens in the matrix"}


def answer(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    """The sentence that the page opens with."""
    if len(models) > 1:
        return _ranks_beside(names, models) or "No two of these output layers have a known rank."
    (name,), (model,) = names, models
    rank = "unknown"
    if model.rank.numerical_rank is not None:
        bound = model.rank.bound
        of = "with no known bound" if bound is None else f"of at most {count(bound)}"
        rank = f"{count(model.rank.numerical_rank)}, {of}"
    return f"The log-probabilities of {name} have a numerical rank that is {rank}."


def model_verdict(model: ModelAudit) -> str:
    """Rank, unargmaxable tokens and mixture of one model, a sentence or two for each."""
    head = model.head
    size = f"d = {head.context_size}" + (f", K = {head.num_components}" if model.mixture else "")
    parts = [
        f"{HEAD_NAMES.get(head.kind, head.kind)} with {size} over {head.vocab_size:,} tokens.",
        rank_verdict(model.rank, head.vocab_size),
        effective_verdict(model.rank),
        unargmaxable_verdict(model),
        "" if model.mixture is None else mixture_verdict(model.mixture),
    ]
    return " ".join(filter(None, parts))


def rank_verdict(rank: RankFacts, vocab_size: int) -> str:
    """The numerical rank, beside the highest that it could have been."""
    found = rank.numerical_rank
    if found is None:
        return f"Its numerical rank is unknown: {rank.unknown}."
    if rank.bound is not None and found > rank.bound:
        return (
            f"Its numerical rank reads {count(found)}, above the {count(rank.bound)} that its form "
            "allows. That cannot be: do not trust this measurement."
        )
    text = f"Its numerical rank is {count(found)}"
    if rank.ceiling_reason == "bound":
        if found == rank.bound:
            return f"{text}, the highest that its form allows ({rank.bound_reason})."
        return f"{text}; its form allows {count(rank.bound)} ({rank.bound_reason})."
    text += f"; {CEILINGS[rank.ceiling_reason]} allows {count(rank.ceiling)} here."
    known = "No bound on it is known" if rank.bound is None else f"Its form allows {rank.bound:,}"
    has_all_tokens = rank.ceiling_reason == "tokens" and rank.num_tokens == vocab_size
    if found >= NEAR * rank.ceiling and not has_all_tokens:
        return f"{text} {known}: with more {rank.ceiling_reason} it may be higher."
    return f"{text} {known}."


def effective_verdict(rank: RankFacts) -> str:
    """How few directions carry nearly everything."""
    found = rank.measures[EFFECTIVE]
    if found is None:
        return ""
    verb = "direction carries" if found == 1 else "directions carry"
    return f"{count(found)} {verb} all but {EPSILON:.1%} of the sum of squares."


def unargmaxable_verdict(model: ModelAudit) -> str:
    """How many tokens can never be the most likely, and of how many it is not known."""
    facts = model.unargmaxable
    if facts is None:
        return ""
    is_open = facts.num_undecided or facts.num_untried
    if not facts.num_unargmaxable and not is_open:
        return "Every token can be the most likely one."
    text = "No token was found that can never be the most likely one"
    if facts.num_unargmaxable:
        can = "token can" if facts.num_unargmaxable == 1 else "tokens can"
        least = "at least " if is_open else ""
        fraction = f"{least}{facts.num_unargmaxable / model.head.vocab_size:.2%} of all"
        text = f"{count(facts.num_unargmaxable)} {can} never be the most likely one ({fraction})"
    if facts.num_undecided:
        text += f"; too close to call: {count(facts.num_undecided)}"
    if facts.num_untried:
        text += f"; left for lack of time: {count(facts.num_untried)}"
    return f"{text}."


def mixture_verdict(mixture: ComponentReport) -> str:
    """Whether the components are used, and whether they differ."""
    dead = [k for k, component in enumerate(mixture.components, 1) if component.is_dead]
    total = len(mixture.components)
    text = f"All {total} components are used."
    if dead:
        text = f"{len(dead)} of its {total} components {'is' if len(dead) == 1 else 'are'} dead: "
        text += f"{listed(dead)}."
    used = f"{math.exp(mixture.weight_entropy):.1f}"
    text += f" In a typical context the weight is spread over about {used} of them."
    if mixture.specialisation < COLLAPSED:
        return f"{text} They have collapsed: the mixture is close to one softmax."
    return (
        f"{text} The mutual information I(component; token) is {mixture.specialisation:.2f} nats."
    )


def comparison(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    """What two or more models have in common and what not; empty for one."""
    if len(models) < 2:
        return ""
    pairs = list(zip(names, models, strict=True))
    sentences = []
    if len({(m.rank.num_contexts, m.rank.num_tokens) for m in models}) > 1:
        sentences.append("The ranks are of matrices of different sizes.")
    apart = listed(f"{name} {divergence(model)}" for name, model in pairs)
    sentences.append(f"Divergence, in nats: {apart}.")
    if len({(m.text.tokens_sha256, m.text.num_contexts, m.head.vocab_size) for m in models}) > 1:
        sentences.append(
            "Their texts or vocabularies differ, so that perplexities cannot be compared, and "
            "ranks only with care."
        )
    else:
        found = listed(
            f"{name} {model.text.perplexity:,.2f} ({millions(model.num_parameters)} parameters)"
            for name, model in pairs
        )
        sentences.append(f"Perplexity after the same contexts: {found}.")
    return " ".join(sentences)


def millions(number: int) -> str:
    return f"{number / 1e6:,.2f}\u00a0M" if number >= 1e5 else f"{number:,}"


def _ranks_beside(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    known = [
        (model.rank.numerical_rank, name)
        for name, model in zip(names, models, strict=True)
        if model.rank.numerical_rank
    ]
    if len(known) < 2:
        return ""
    most = max(rank for rank, _ in known)
    first = [name for rank, name in known if rank == most]
    others = [f"{most / rank:.3g} × that of {name}" for rank, name in known if rank < most]
    if not others:
        return f"All have the numerical rank {count(most)}."
    verb = "has" if len(first) == 1 else "have"
    return f"{listed(first)} {verb} the highest numerical rank, {count(most)}: {listed(others)}."
