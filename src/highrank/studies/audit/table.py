"""What an audit found, as rows side by side and as sentences that are read off the numbers."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highrank.analysis.components import COLLAPSED, ComponentReport
from highrank.analysis.rank import MEASURES, Measure
from highrank.report.formats import duration, legible, listed, shortened
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.result import AuditResult, ModelAudit, RankFacts

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Models beside each other on 80 columns.
MOST_COLUMNS = 3
# Measures that differ in ε alone share one definition: it stands beside the first.
_FIRST = {measure.definition: measure for measure in reversed(MEASURES)}
DEFINITIONS = " ".join(
    f"{measure.label[0].upper()}{measure.label[1:]}: {measure.definition}."
    for measure in MEASURES
    if _FIRST[measure.definition] is measure
)
LEGEND = (
    "Matrix: the contexts × tokens that have the ranks below. Bound: the highest rank that the "
    f"form of the head allows. {DEFINITIONS} Divergence: between the predictions of two contexts, "
    "nats. Unargmaxable: tokens that no hidden state makes the most likely. Undecided: too close "
    "to call, or no time. Dead: components that are not used. –: unknown, or none. A high rank "
    "alone predicts little: the page explains why."
)

# The effective rank that sentences and charts show.
EFFECTIVE, EPSILON = "effective_rank_1e-3", 1e-3
# A rank this close to the ceiling may be limited by the measurement.
NEAR = 0.9
CEILINGS = {"contexts": "the number of contexts", "tokens": "the number of tokens in the matrix"}

Rows = list[tuple[str, ...]]


def audit_table(result: AuditResult) -> Group:
    """The key numbers of every model: 80 columns wide at most, with three models to a table."""
    names = short_names(result.models)
    rows = [*key_rows(result.models), *_health_rows(result.models)]
    tables: list[RenderableType] = []
    for start in range(0, len(names), MOST_COLUMNS):
        part = slice(start, start + MOST_COLUMNS)
        tables.append(_table(names[part], [(label, *cells[part]) for label, *cells in rows]))
    quick = "Quick: rough numbers. " if result.quick else ""
    return Group(*tables, Text(f"{quick}{LEGEND} {duration(result.elapsed)}.", style="dim italic"))


def key_rows(models: Sequence[ModelAudit]) -> Rows:
    """Sizes of the heads, every measure of rank, and the divergence."""
    return _rows(
        models,
        {
            "head": lambda m: HEAD_NAMES.get(m.head.kind, m.head.kind),
            "tokens, V": lambda m: count(m.head.vocab_size),
            "context, d": lambda m: count(m.head.context_size),
            "components, K": lambda m: count(m.head.num_components),
            "matrix": lambda m: f"{count(m.rank.num_contexts)}×{count(m.rank.num_tokens)}",
            "perplexity, sampled": lambda m: f"{m.text.perplexity:,.2f}",
            "bound": lambda m: count(m.rank.bound),
            **{measure.label: partial(_measured, measure) for measure in MEASURES},
            "divergence": divergence,
        },
    )


def count(value: float | None, decimals: int = 0) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"


def power(value: float) -> str:
    """10⁻³ instead of 0.001, 3·10⁻¹² instead of 3e-12; rounded up to one digit."""
    exponent = math.floor(math.log10(value) + 1e-9)
    digit = math.ceil(value / 10.0**exponent - 1e-6)
    if digit == 10:
        digit, exponent = 1, exponent + 1
    text = "10" + str(exponent).translate(SUPERSCRIPT)
    return text if digit == 1 else f"{digit}·{text}"


def millions(number: int) -> str:
    return f"{number / 1e6:,.2f}\u00a0M" if number >= 1e5 else f"{number:,}"


def divergence(model: ModelAudit) -> str:
    """Nats, with the standard error where there is one."""
    error = model.divergence.standard_error
    return f"{model.divergence.nats:.3f}" + ("" if error is None else f"\u00a0±\u00a0{error:.3f}")


def short_names(models: Sequence[ModelAudit]) -> tuple[str, ...]:
    """The last part of each model's path or address, or all of it where that is not unique."""
    last = [model.name.rstrip("/").rsplit("/", 1)[-1] for model in models]
    number, seen, names = Counter(last), Counter[str](), []
    for model, name in zip(models, last, strict=True):
        name = name if number[name] == 1 else model.name
        # matplotlib hides a name that starts with _.
        name = f"…/{name}" if name.startswith("_") else name
        shown = shortened(legible(name, "run", 200))
        seen[shown] += 1
        names.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return tuple(names)


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


def _measured(measure: Measure, model: ModelAudit) -> str:
    return count(model.rank.measures[measure.key], measure.decimals)


def _health_rows(models: Sequence[ModelAudit]) -> Rows:
    def unargmaxable(model: ModelAudit) -> str:
        facts = model.unargmaxable
        return count(None if facts is None else facts.num_unargmaxable)

    def undecided(model: ModelAudit) -> str:
        facts = model.unargmaxable
        return count(None if facts is None else facts.num_undecided + facts.num_untried)

    def dead(model: ModelAudit) -> str:
        return count(None if model.mixture is None else model.mixture.num_dead)

    return _rows(models, {"unargmaxable": unargmaxable, "undecided": undecided, "dead": dead})


def _rows(models: Sequence[ModelAudit], cells: dict[str, Callable[[ModelAudit], str]]) -> Rows:
    return [(label, *map(cell, models)) for label, cell in cells.items()]


def _table(names: Sequence[str], rows: Rows) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in names:
        # A name is a path or an address, never markup.
        table.add_column(Text(name, overflow="fold"), justify="right", min_width=13, max_width=16)
    for row in rows:
        table.add_row(*row)
    return table
