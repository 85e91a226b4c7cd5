"""What an audit found of each model, side by side: rows that the terminal and the page share."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from highrank.report.formats import duration, legible, shortened
from highrank.report.theme import HEAD_NAMES
from highrank.studies.audit.result import AuditResult, ModelAudit

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Models beside each other on 80 columns.
MOST_COLUMNS = 3
UNITS = (
    "matrix: the contexts × words that have the ranks below. bound: the highest rank that the form "
    "of the head allows. comparable: singular values above float32's round-off; certified: above "
    "float64's. effective, ε: how many carry all but ε of the sum of squares. divergence: between "
    "the predictions of two contexts, nats. unreachable: words that no hidden state makes the most "
    "likely. undecided: too close to call, or left for lack of time. dead: components that are not "
    "used. –: unknown, or none. A high rank alone predicts little: the page says why."
)

Rows = list[tuple[str, ...]]


def audit_table(result: AuditResult) -> Group:
    """The key numbers of every model: 80 columns wide at most, with three models to a table."""
    names = short_names(result.models)
    rows = [*size_rows(result.models), *rank_rows(result.models), *_health_rows(result.models)]
    tables: list[RenderableType] = []
    for start in range(0, len(names), MOST_COLUMNS):
        part = slice(start, start + MOST_COLUMNS)
        tables.append(_table(names[part], [(label, *cells[part]) for label, *cells in rows]))
    quick = "Quick: rough numbers. " if result.quick else ""
    return Group(*tables, Text(f"{quick}{UNITS} {duration(result.elapsed)}.", style="dim italic"))


def size_rows(models: Sequence[ModelAudit]) -> Rows:
    """What the heads are."""
    return _rows(
        models,
        {
            "head": lambda m: HEAD_NAMES.get(m.head.kind, m.head.kind),
            "words, V": lambda m: f"{m.head.vocab_size:,}",
            "context, d": lambda m: f"{m.head.context_size:,}",
            "components, K": lambda m: f"{m.head.num_components}",
            "matrix": lambda m: f"{count(m.rank.num_contexts)}×{count(m.rank.num_words)}",
            "perplexity, sampled": lambda m: f"{m.text.perplexity:,.2f}",
        },
    )


def rank_rows(models: Sequence[ModelAudit]) -> Rows:
    """All that is said of a rank, and the divergence."""
    epsilons = sorted({e.epsilon for m in models for e in m.rank.effective}, reverse=True)
    return _rows(
        models,
        {
            "bound": lambda m: count(m.rank.bound),
            "comparable rank": lambda m: count(m.rank.comparable),
            "certified rank": lambda m: count(m.rank.certified),
            **{
                f"effective, ε\u00a0=\u00a0{power(e)}": partial(_effective, epsilon=e)
                for e in epsilons
            },
            "stable rank": lambda m: f"{m.rank.stable:,.2f}",
            "entropy rank": lambda m: f"{m.rank.entropy:,.1f}",
            "divergence": divergence,
        },
    )


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


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


def _effective(model: ModelAudit, epsilon: float) -> str:
    return count({e.epsilon: e.rank for e in model.rank.effective}.get(epsilon))


def _health_rows(models: Sequence[ModelAudit]) -> Rows:
    return _rows(
        models,
        {
            "unreachable": lambda m: (
                "–" if m.reachability is None else count(m.reachability.num_unreachable)
            ),
            "undecided": lambda m: (
                "–"
                if m.reachability is None
                else count(m.reachability.num_undecided + m.reachability.num_untried)
            ),
            "dead": lambda m: "–" if m.mixture is None else f"{m.mixture.num_dead}",
        },
    )


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


def short_names(models: Sequence[ModelAudit]) -> tuple[str, ...]:
    """The last part of each model's path or address, or all of it where that is not unique."""
    last = [model.name.rstrip("/").rsplit("/", 1)[-1] for model in models]
    # matplotlib takes a name that starts with _ for one that is not to be shown.
    last = [f"…/{name}" if name.startswith("_") else name for name in last]
    count, seen, names = Counter(last), Counter[str](), []
    for model, name in zip(models, last, strict=True):
        shown = shortened(legible(name if count[name] == 1 else _all_of(model), "run", 200))
        seen[shown] += 1
        names.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return tuple(names)


def _all_of(model: ModelAudit) -> str:
    return f"…/{model.name}" if model.name.startswith("_") else model.name
