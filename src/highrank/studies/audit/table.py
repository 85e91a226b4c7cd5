"""The findings of an audit side by side: rows of the tables, sentences read off the numbers.

A row has a label, a cell for each model, and what the page's glossary says about it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highrank.analysis.components import ComponentReport
from highrank.analysis.rank import MEASURES, Measure
from highrank.analysis.undertrained import Closeness
from highrank.files import path_text
from highrank.heads import head_class
from highrank.report.formats import (
    count,
    duration,
    legible,
    listed,
    millions,
    nats,
    shortened,
    with_error,
)
from highrank.studies.audit.answer import EFFECTIVE, FINE, better, question
from highrank.studies.audit.measure import AuditResult, ModelAudit
from highrank.studies.audit.model import Source
from highrank.studies.audit.rank import RANDOM_WEIGHTS
from highrank.studies.audit.tokens import UnargmaxableFacts

# Columns of a terminal are 80: three models beside each other, or two with long names.
NAME_WIDTHS = {3: 16, 2: 25}
RANDOM = "– random weights"
# The measures that the answer uses, and that have a baseline.
COMPARED = ("numerical_rank_float32", EFFECTIVE, FINE)
LEGEND = (
    "–: unknown or none; random weights: same head, untrained; terms: see the page.\n"
    "Perplexities are of contexts that are short and lie together; the model's: highrank evaluate."
)
OWN = "own: the model's number, of as few contexts as the random weights had."


# Fields of a fit, as rows of perplexities.
FIT_ROWS = {
    "nats": ("held out, own head", "perplexity on held-out text of the model as it is"),
    "softmax_nats": ("– fitted Softmax", "of one softmax, fitted to the hidden states"),
    "moc_nats": ("– fitted MoC", "of a mixture of contexts, which has the bound, too"),
    "mos_nats": ("– fitted MoS", "of a mixture of softmaxes, which has no bound"),
}


class Row(NamedTuple):
    label: str
    cell: Callable[[ModelAudit], str]
    definition: str = ""
    """For the glossary; empty where the label says all."""
    of_mixtures: bool = False
    """Whether it is left out where no model is a mixture."""
    of_fits: bool = False
    """Whether it is left out where nothing was fitted."""
    is_brief: bool = False
    """Whether only the terminal has it: the page says more about it elsewhere."""


def _measure_rows(measure: Measure) -> Iterator[Row]:
    """A measure of rank and, where the answer uses it, its baseline.

    The model's own rank stands beside a baseline of fewer contexts.
    """

    def own(model: ModelAudit) -> str:
        return count(model.rank.measures[measure.key], measure.decimals)

    def random(model: ModelAudit) -> str:
        found = count(model.baseline.measures[measure.key], measure.decimals)
        if model.baseline.num_contexts == model.rank.num_contexts:
            return found
        growth = {at.num_contexts: at.measures[measure.key] for at in model.rank.growth}
        return f"{found} (own {count(growth[model.baseline.num_contexts], measure.decimals)})"

    yield Row(measure.label, own, measure.definition)
    if measure.key in COMPARED:
        yield Row(RANDOM, random)


def _of_mixture(
    value: Callable[[ComponentReport], float], shown: Callable[[float], str] = nats
) -> Callable[[ModelAudit], str]:
    return lambda m: "–" if m.mixture is None else shown(value(m.mixture))


def _of_tokens(number: Callable[[UnargmaxableFacts], int]) -> Callable[[ModelAudit], str]:
    return lambda m: "–" if m.unargmaxable is None else count(number(m.unargmaxable))


def _of_fit(key: str) -> Callable[[ModelAudit], str]:
    return lambda m: "–" if m.fit is None else f"{math.exp(getattr(m.fit, key)):,.2f}"


def _random_specialisation(model: ModelAudit) -> str:
    found = model.baseline.specialisation
    return "–" if found is None else nats(found)


def _title(kind: str) -> str:
    try:
        return head_class(kind).title
    except ValueError:
        return kind


ROWS = (
    Row("head", lambda m: _title(m.head.kind)),
    Row("tokens, V", lambda m: count(m.head.vocab_size)),
    Row("context, d", lambda m: count(m.head.context_size)),
    Row("components, K", lambda m: count(m.head.num_components)),
    Row(
        "matrix",
        lambda m: f"{count(m.rank.num_contexts)}×{count(m.rank.num_tokens)}",
        "the contexts × tokens whose log-probabilities have the ranks below",
    ),
    Row(
        "perplexity of contexts",
        lambda m: f"{m.text.perplexity:,.2f}",
        "of the tokens that follow these contexts, which have short histories and lie in a few "
        "places of the text: not the model’s perplexity, which `highrank evaluate` measures",
    ),
    Row(
        "– shuffled",
        lambda m: f"{m.text.shuffled_perplexity:,.2f}",
        "baseline: each context scored with what follows another one",
    ),
    Row(
        "bound", lambda m: count(m.rank.bound), "the highest rank that the form of the head allows"
    ),
    *(row for measure in MEASURES for row in _measure_rows(measure)),
    Row(
        "divergence",
        lambda m: with_error(m.divergence.nats, m.divergence.standard_error),
        "mean KL divergence between the predictions of two contexts, nats, ± its error",
    ),
    Row(
        RANDOM,
        lambda m: nats(m.baseline.divergence),
        f"baseline: {RANDOM_WEIGHTS}; “own” is the model’s number of as many contexts",
    ),
    Row(
        "I(component; token)",
        _of_mixture(lambda report: report.specialisation),
        "mutual information given the context, nats: 0 for equal components",
        of_mixtures=True,
    ),
    Row(RANDOM, _random_specialisation, of_mixtures=True),
    Row(
        "I(component; context)",
        _of_mixture(lambda report: report.gate_information),
        "mutual information, nats: 0 for weights that never change",
        of_mixtures=True,
    ),
    *(
        Row(label, _of_fit(key), definition, of_fits=True)
        for key, (label, definition) in FIT_ROWS.items()
    ),
    Row(
        "unargmaxable",
        _of_tokens(lambda facts: facts.num_unargmaxable),
        "tokens that no hidden state makes the most likely",
        is_brief=True,
    ),
    Row(
        "undecided",
        _of_tokens(lambda facts: facts.num_undecided + facts.num_untried),
        is_brief=True,
    ),
    Row(
        "under-trained",
        lambda m: "–" if m.undertrained is None else count(m.undertrained.num_undertrained),
        "tokens whose vectors lie near those of tokens that never occur, or are short",
        is_brief=True,
    ),
    Row(
        "dead", _of_mixture(lambda report: report.num_dead, count), of_mixtures=True, is_brief=True
    ),
)


def _embedding(model: ModelAudit) -> str:
    head = model.head
    parts = [head.dtype, "tied" if head.is_tied else "not tied"]
    parts.append("with bias" if head.has_bias else "no bias")
    if head.scale != 1:
        parts.append(f"logits × {head.scale:g}")
    if head.softcap is not None:
        parts.append(f"soft-capped at {head.softcap:g}")
    return ", ".join(parts)


FACTS: dict[str, Callable[[ModelAudit], str]] = {
    "Model": lambda m: legible_name(m.name),
    "Source": lambda m: "Hugging Face" if m.source is Source.HUGGING_FACE else "run",
    "Architecture": lambda m: m.architecture,
    "Parameters": lambda m: millions(m.num_parameters),
    "Output embedding": _embedding,
    "Text": lambda m: legible_name(m.text.name),
    "SHA-256 of the text": lambda m: m.text.sha256[:12],
    "Tokens of the text": lambda m: count(m.text.num_tokens),
    "Contexts, T": lambda m: count(m.text.num_contexts),
    "Nats per token of contexts": lambda m: f"{m.text.nats:.4f}",
    "Matrix": lambda m: f"{count(m.rank.num_contexts)} × {count(m.rank.num_tokens)}",
    "Method": lambda m: f"{m.rank.method}: {m.rank.method_reason}",
    "Ceiling": lambda m: f"{count(m.rank.ceiling)}, by {m.rank.ceiling_reason}",
    "Bound": lambda m: (
        f"{'none' if m.rank.bound is None else count(m.rank.bound)}: {m.rank.bound_reason}"
    ),
    "Largest σ": lambda m: f"{m.rank.largest:.4g}",
    "Noise floor": lambda m: f"{m.rank.noise_floor:.1e}",
    "Time": lambda m: duration(m.elapsed),
}


def rows_of(models: Sequence[ModelAudit]) -> list[Row]:
    """The rows that these models need."""
    has_mixtures = any(model.mixture for model in models)
    has_fits = any(model.fit for model in models)
    return [
        row
        for row in ROWS
        if (has_mixtures or not row.of_mixtures) and (has_fits or not row.of_fits)
    ]


def four_numbers(models: Sequence[ModelAudit]) -> Iterator[tuple[str, ...]]:
    """What stands beside the spectrum."""
    measures = ("numerical_rank_float32", EFFECTIVE)
    yield "Bound", *(count(m.rank.bound) for m in models)
    for label, key in zip(("Rank", "Effective rank"), measures, strict=True):
        yield label, *(count(m.rank.measures[key]) for m in models)
    yield (
        "A mixture, fitted",
        *("–" if m.fit is None else better(m.fit.gain, m.fit.error) for m in models),
    )


def glossary(models: Sequence[ModelAudit]) -> dict[str, str]:
    """The labels of rows, and what they mean; effective ranks differ in ε alone."""
    terms = ((row.label.split(", ε")[0], row.definition) for row in rows_of(models))
    found = {term[:1].upper() + term[1:]: text for term, text in terms if text}
    return {**found, "–": "unknown, or none"}


def audit_table(result: AuditResult) -> Group:
    """The question, the answers, then the key numbers of every model, 80 columns wide at most."""
    names, models = short_names(result.models), result.models
    rows = [(row.label, *map(row.cell, models)) for row in rows_of(models)]
    number = 3 if max(map(len, names)) <= NAME_WIDTHS[3] else 2
    labels = [f"{name}: " for name in names] if len(names) > 1 else [""]
    answers = [f"{label}{m.answer.sentence}" for label, m in zip(labels, models, strict=True)]
    shown: list[RenderableType] = [Text(line) for line in (question(len(names)), *answers)]
    for start in range(0, len(names), number):
        part = slice(start, start + number)
        cells = [(label, *cells[part]) for label, *cells in rows]
        shown.append(_table(names[part], cells, NAME_WIDTHS[number]))
    has_own = any("(own " in cell for row in rows for cell in row)
    shown += [Text(line, style="dim italic") for line in ([LEGEND, OWN] if has_own else [LEGEND])]
    return Group(*shown, *map(Text, _notes(names, result)))


def _notes(names: Sequence[str], result: AuditResult) -> Iterator[str]:
    """Which text was read, and what was not measured and why; with the models they are about."""
    texts: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for name, model in zip(names, result.models, strict=True):
        texts.setdefault(legible_name(model.text.name), []).append(name)
        missing.setdefault(model.unargmaxable_note, []).append(name)
    for text, owners in texts.items():
        yield f"Text: {text}." if len(texts) == 1 else f"Text of {listed(owners)}: {text}."
    if result.quick:
        yield "Quick: rough numbers."
    for note, owners in missing.items():
        if note:
            yield f"Unargmaxable tokens of {listed(owners)}: {note}."


def short_names(models: Sequence[ModelAudit]) -> tuple[str, ...]:
    """The last part of each model's path or address, or all of it where that is not unique."""
    last = [model.name.rstrip("/").rsplit("/", 1)[-1] for model in models]
    number, seen, names = Counter(last), Counter[str](), []
    for model, name in zip(models, last, strict=True):
        name = name if number[name] == 1 else model.name
        # matplotlib hides a name that starts with _.
        name = f"…/{name}" if name.startswith("_") else name
        shown = shortened(legible_name(name))
        seen[shown] += 1
        names.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return tuple(names)


def legible_name(name: str) -> str:
    """A path or an address: a space in it is one, unlike that of a token."""
    return legible(path_text(name), "run", 200).replace("␣", " ")


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


def undertrained_verdict(model: ModelAudit) -> str:
    """How many tokens look under-trained, and by what."""
    facts = model.undertrained
    if facts is None:
        return "This head has no single vector for each token."
    found, many = facts.num_undertrained, facts.num_undertrained != 1
    text = f"{count(found)} token{'s look' if many else ' looks'} under-trained"
    if found:
        text += f" ({found / model.head.vocab_size:.2%} of all)"
    if facts.measure is Closeness.NORM:
        return f"{text}, by the lengths of the vectors."
    never = "the one that never occurs" if facts.num_unused == 1 else "those that never occur"
    return f"{text}, by the distance of the vectors from {never} ({count(facts.num_unused)})."


def mixture_verdict(mixture: ComponentReport) -> str:
    """Whether the components have specialised or collapsed, and which are not used."""
    text = (
        f"The components have {mixture.state_text}: {mixture.state_reason} ({mixture.information})."
    )
    dead = [k for k, component in enumerate(mixture.components, 1) if component.is_dead]
    if dead:
        text += f" Dead, with hardly any weight: {listed(dead)} of {len(mixture.components)}."
    used = math.exp(mixture.weight_entropy)
    return f"{text} In a typical context the weight is spread over about {used:.1f} of them."


def comparison(names: Sequence[str], models: Sequence[ModelAudit]) -> str:
    """Sentences that compare two or more models; empty for one."""
    if len(models) < 2:
        return ""
    pairs = list(zip(names, models, strict=True))
    sentences = []
    if len({(m.rank.num_contexts, m.rank.num_tokens) for m in models}) > 1:
        sentences.append("The ranks are of matrices of different sizes.")
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


def _table(names: Sequence[str], rows: Sequence[tuple[str, ...]], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in names:
        # A name is a path or an address, never markup.
        table.add_column(
            Text(name, overflow="fold"), justify="right", min_width=13, max_width=width
        )
    for row in rows:
        table.add_row(*row)
    return table
