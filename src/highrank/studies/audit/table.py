"""What an audit found of each model, side by side: rows that the terminal and the page share."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highrank.analysis.rank import MEASURES, Measure
from highrank.report.formats import duration, legible, shortened
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.result import AuditResult, ModelAudit

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
