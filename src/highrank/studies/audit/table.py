"""What an audit found: the answers, rows side by side, and sentences read off the numbers."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highrank.analysis.components import ComponentReport
from highrank.analysis.rank import MEASURES, Measure
from highrank.files import path_text
from highrank.report.formats import legible, listed, nats, shortened, with_error
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.answer import EFFECTIVE, FINE, question
from highrank.studies.audit.control import DESCRIPTION
from highrank.studies.audit.result import AuditResult, ModelAudit

# Columns of a terminal are 80: three models beside each other, or two with long names.
NAME_WIDTHS = {3: 16, 2: 25}
RANDOM = "– random weights"
# The measures that the answer uses.
CONTROLLED = ("numerical_rank_float32", EFFECTIVE, FINE)
LEGEND = "–: unknown or none; random weights: same head, untrained; terms: see the page."
OWN = "own: the model's number, of as few contexts as the random weights had."

GLOSSARY = (
    ("Matrix", "the contexts × tokens whose log-probabilities have the ranks below"),
    ("Perplexity, sampled", "of the tokens that follow these contexts, no evaluation of the text"),
    ("– shuffled contexts", "control: each context scored with what follows another one"),
    ("Bound", "the highest rank that the form of the head allows"),
    # Effective ranks differ in ε alone.
    *{m.label.split(", ε")[0].capitalize(): m.definition for m in MEASURES}.items(),
    (RANDOM, f"control: {DESCRIPTION}; “own” is the model’s number of as many contexts"),
    ("Divergence", "mean KL divergence between the predictions of two contexts, nats, ± its error"),
    ("I(component; token)", "mutual information given the context, nats: 0 for equal components"),
    ("I(component; context)", "mutual information, nats: 0 for weights that never change"),
    ("Unargmaxable", "tokens that no hidden state makes the most likely"),
    ("–", "unknown, or none"),
)

Rows = list[tuple[str, ...]]
Cells = dict[str, Callable[[ModelAudit], str]]


def audit_table(result: AuditResult) -> Group:
    """The question, the answers, then the key numbers of every model, 80 columns wide at most."""
    names = short_names(result.models)
    rows = [*key_rows(result.models), *_health_rows(result.models)]
    number = 3 if max(map(len, names)) <= NAME_WIDTHS[3] else 2
    lines = [question(len(names)), *answers(names, result.models)]
    shown: list[RenderableType] = [Text(line) for line in lines]
    for start in range(0, len(names), number):
        part = slice(start, start + number)
        cells = [(label, *cells[part]) for label, *cells in rows]
        shown.append(_table(names[part], cells, NAME_WIDTHS[number]))
    has_own = any("(own " in cell for row in rows for cell in row)
    shown += [Text(line, style="dim italic") for line in ([LEGEND, OWN] if has_own else [LEGEND])]
    quick = ["Quick: rough numbers."] if result.quick else []
    notes = (*texts(names, result.models), *quick, *missing(names, result.models))
    return Group(*shown, *map(Text, notes))


def answers(names: Sequence[str], models: Sequence[ModelAudit]) -> list[str]:
    """A sentence for each model, with its name where there are several."""
    if len(models) == 1:
        return [models[0].answer.sentence]
    return [f"{name}: {m.answer.sentence}" for name, m in zip(names, models, strict=True)]


def texts(names: Sequence[str], models: Sequence[ModelAudit]) -> list[str]:
    """Which text was read, and by which models where there are several texts."""
    found: dict[str, list[str]] = {}
    for name, model in zip(names, models, strict=True):
        found.setdefault(legible_name(model.text.name), []).append(name)
    if len(found) == 1:
        return [f"Text: {text}." for text in found]
    return [f"Text of {listed(of)}: {text}." for text, of in found.items()]


def missing(names: Sequence[str], models: Sequence[ModelAudit]) -> list[str]:
    """What was not measured, and why."""
    notes: dict[str, list[str]] = {}
    for name, model in zip(names, models, strict=True):
        if model.unargmaxable_note:
            notes.setdefault(model.unargmaxable_note, []).append(name)
    return [f"Unargmaxable tokens of {listed(of)}: {note}." for note, of in notes.items()]


def key_rows(models: Sequence[ModelAudit]) -> Rows:
    """Sizes of the heads, every measure of rank, the divergence, and what is a control of them."""
    cells: Cells = {
        "head": lambda m: HEAD_NAMES.get(m.head.kind, m.head.kind),
        "tokens, V": lambda m: count(m.head.vocab_size),
        "context, d": lambda m: count(m.head.context_size),
        "components, K": lambda m: count(m.head.num_components),
        "matrix": lambda m: f"{count(m.rank.num_contexts)}×{count(m.rank.num_tokens)}",
        "perplexity, sampled": lambda m: f"{m.text.perplexity:,.2f}",
        "– shuffled contexts": lambda m: f"{m.text.shuffled_perplexity:,.2f}",
        "bound": lambda m: count(m.rank.bound),
    }
    rows = _rows(models, cells)
    for measure in MEASURES:
        rows += _rows(models, {measure.label: partial(_measured, measure)})
        if measure.key in CONTROLLED:
            rows += _rows(models, {RANDOM: partial(_controlled, measure)})
    rows += _rows(models, {"divergence": divergence, RANDOM: lambda m: nats(m.control.divergence)})
    mixtures = [model.mixture for model in models]
    if any(mixtures):
        token = [_nats(m.specialisation if m else None) for m in mixtures]
        context = [_nats(m.gate_information if m else None) for m in mixtures]
        rows.append(("I(component; token)", *token))
        rows += _rows(models, {RANDOM: lambda m: _nats(m.control.specialisation)})
        rows.append(("I(component; context)", *context))
    return rows


def count(value: float | None, decimals: int = 0) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"


def millions(number: int) -> str:
    return f"{number / 1e6:,.2f}\u00a0M" if number >= 1e5 else f"{number:,}"


def divergence(model: ModelAudit) -> str:
    """Nats, with the standard error where there is one."""
    return with_error(model.divergence.nats, model.divergence.standard_error)


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
    """What two or more models have in common and what not; empty for one."""
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


def _measured(measure: Measure, model: ModelAudit) -> str:
    return count(model.rank.measures[measure.key], measure.decimals)


def _controlled(measure: Measure, model: ModelAudit) -> str:
    """With random weights; beside the model's own rank of as many contexts if these are fewer."""
    control = model.control
    found = count(control.measures[measure.key], measure.decimals)
    if control.num_contexts == model.rank.num_contexts:
        return found
    growth = {at.num_contexts: at.measures[measure.key] for at in model.rank.growth}
    own = count(growth[control.num_contexts], measure.decimals)
    return f"{found} (own {own})"


def _nats(value: float | None) -> str:
    return "–" if value is None else nats(value)


def _health_rows(models: Sequence[ModelAudit]) -> Rows:
    def unargmaxable(model: ModelAudit) -> str:
        facts = model.unargmaxable
        return count(None if facts is None else facts.num_unargmaxable)

    def undecided(model: ModelAudit) -> str:
        facts = model.unargmaxable
        return count(None if facts is None else facts.num_undecided + facts.num_untried)

    def dead(model: ModelAudit) -> str:
        return count(None if model.mixture is None else model.mixture.num_dead)

    cells: Cells = {"unargmaxable": unargmaxable, "undecided": undecided}
    if any(model.mixture for model in models):
        cells["dead"] = dead
    return _rows(models, cells)


def _rows(models: Sequence[ModelAudit], cells: Cells) -> Rows:
    return [(label, *map(cell, models)) for label, cell in cells.items()]


def _table(names: Sequence[str], rows: Rows, width: int) -> Table:
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
