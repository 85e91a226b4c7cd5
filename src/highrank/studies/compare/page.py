"""Tables and the page of `highrank compare`; page.html.j2 has the page's prose."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from textwrap import fill

from rich.console import Group, RenderableType
from rich.table import Table as PrintedTable
from rich.text import Text

from highrank.analysis.contrasts import Contrast, Verdict
from highrank.evaluation.check import check_word
from highrank.files import write_atomically
from highrank.report.figure import Lines, describe, draw, save_png, to_svg
from highrank.report.formats import (
    count,
    duration,
    environment_text,
    make_table,
    perplexity,
)
from highrank.report.page import Column, Figure, Table, render
from highrank.studies.compare.charts import (
    Sweep,
    cost_chart,
    learning_charts,
    rank_chart,
    sweep_charts,
)
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.record import Mark
from highrank.studies.compare.result import CompareResult, RegimeResult
from highrank.studies.compare.sentences import amount_text, notes, plan_note, regime_note

LEARNING = ("Against tokens", "Against time")
SCATTER = {
    "What a head wins, and what it must win": "Heads above the dashed line pay for their time. "
    "Vertical lines: 95 % intervals.",
    "Rank and loss": "Singular values of log p after 500 contexts of valid that carry all but 10⁻³ "
    "of the sum of squares. Vertical lines: as in the other chart.",
}
SWEEPS = {Sweep.COMPONENTS: "The number of components", Sweep.SIZE: "The size d"}
# Charts of a sweep that a picture shows: loss, gap and rank.
NUM_PICTURED = 3
MARK_FIELDS = [field.name for field in fields(Mark)]
TITLE_WIDTH = 12
NONE = "–"


def plan_table(plan: Plan) -> RenderableType:
    """The variants, how fast they are, and how long everything takes."""
    rows = [
        {
            "Variant": variant.label,
            "d": str(variant.embedding_size),
            "D": str(variant.context_size),
            "Layers": variant.layers,
            "Parameters": f"{variant.num_parameters:,}",
            "Tokens/CPU s": f"{1 / speed.cpu:,.0f}",
            "CPU s": f"{plan.cpu_of(index):,.0f}",
            "Minutes": f"{plan.seconds_of(index) / 60:.1f}",
        }
        for index, (variant, speed) in enumerate(zip(plan.variants, plan.speeds, strict=True))
    ]
    return Group(_printed(_table(rows, 2), "The plan"), plan_note(plan, duration))


def compare_table(result: CompareResult) -> RenderableType:
    """The answer, a table for each regime, costs, the recommendation."""
    return Group(Text(result.verdict, "bold"), result.answer, "", *_parts(result))


def _parts(result: CompareResult) -> Iterator[RenderableType]:
    for regime in result.regimes:
        title = f"Equal {regime.name}, {amount_text(regime)}: perplexities"
        yield _printed(_regime_table(result, regime), title)
        yield regime_note(regime)
        yield ""
    if result.regimes:
        yield _printed(_variant_table(result), f"Variants at equal {result.regimes[-1].name}")
    if result.costs:
        title = "Does it pay for its time? By the control's own learning curve, at equal tokens"
        yield _printed(_cost_table(result), title)
    yield from notes(result)
    if (found := result.recommendation) is not None:
        yield f"Recommended: {found.text}, because {found.evidence}."
        yield f"What it is: {found.description}"
        if found.command:
            yield f"Train it in full, by the recipe of the comparison: {found.command}"


def _printed(table: Table, title: str) -> PrintedTable:
    """A page's table for the terminal: long titles of numbers are folded, not cut."""
    words = [column.title for column in table.columns if not column.is_number]
    numbers = [fill(column.title, TITLE_WIDTH) for column in table.columns if column.is_number]
    printed = make_table(words, numbers, title=title)
    for index, row in enumerate(table.rows):
        # Parameters, and below them a table of counts: names of heads need the room.
        folded = (cell.replace(" + ", "\n+ ").replace(", ", ",\n") for cell in row[len(words) :])
        style = "bold" if index in table.highlighted else None
        printed.add_row(*row[: len(words)], *folded, style=style)
    return printed


def _table(rows: Sequence[dict[str, str]], num_text: int) -> Table:
    """A table of rows by title; the first columns are text, the others numbers."""
    columns = tuple(Column(title, i >= num_text) for i, title in enumerate(rows[0]))
    return Table(columns=columns, rows=tuple(tuple(row.values()) for row in rows))


def _regime_table(result: CompareResult, regime: RegimeResult) -> Table:
    """A row for each variant; the one that is recommended is highlighted."""
    has_sizes = len({row.embedding_size for row in regime.rows}) > 1
    rows = [
        {
            "Head": row.label,
            **({"d": str(row.embedding_size)} if has_sizes else {}),
            "On valid": _verdict(row.valid),
            "Valid": _perplexity(row.valid_loss, row.valid_deviation),
            "Test": _perplexity(row.test_loss, row.test_deviation),
            "Valid − control, %": _relative(row.valid),
            "Test − control, %": _relative(row.test, has_interval=False),
        }
        for row in regime.rows
    ]
    if (alone := result.ngram) is not None:
        titles = dict.fromkeys(rows[0], NONE)
        losses = {"Valid": alone.valid_loss, "Test": alone.test_loss}
        found = {split: f"{perplexity(loss):.2f}" for split, loss in losses.items()}
        rows.append(titles | found | {"Head": f"{alone.order}-gram alone"})
    taken = None if result.recommendation is None else result.recommendation.row
    index = frozenset(i for i, row in enumerate(regime.rows) if row.name == taken)
    return replace(_table(rows, 2 + has_sizes), highlighted=index)


def _verdict(contrast: Contrast | None) -> str:
    if contrast is None:
        return NONE
    return "none seen" if contrast.verdict is Verdict.NO_DIFFERENCE else contrast.verdict


def _perplexity(loss: float, deviation: float | None) -> str:
    """The mean of losses as perplexity, and their standard deviation: "142.1 ± 1.3"."""
    value = perplexity(loss)
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {value * deviation:.2f}"


def _relative(contrast: Contrast | None, *, has_interval: bool = True) -> str:
    """Perplexity relative to the control's, in percent."""
    if contrast is None:
        return NONE
    values = (contrast.difference, contrast.low, contrast.high)
    found = [f"{math.expm1(value) * 100:+.1f}" for value in values]
    return f"{found[0]} ({found[1]} … {found[2]})" if has_interval else found[0]


def _variant_table(result: CompareResult) -> Table:
    """Sizes, and what was measured besides the loss, in the last regime."""
    measured, rows = {row.name: row for row in result.regimes[-1].rows}, []
    for variant in result.variants:
        row, rank = measured.get(variant.name), variant.analysis.get("effective_rank_1e-3")
        information = variant.analysis.get("specialisation")
        beside = "" if variant.table is None else f" + {variant.table}"
        rows.append(
            {
                "Head": variant.label,
                "d": str(variant.embedding_size),
                "Layers": variant.layers,
                "Parameters": f"{variant.num_parameters:,}" + beside,
                "Tokens": NONE if row is None else f"{row.tokens:,.0f}",
                "CPU s": NONE if row is None else f"{row.cpu_seconds:,.0f}",
                "Gap, nats": NONE if row is None else f"{row.gap:.2f}",
                "Rank, ε = 10⁻³": count(rank),
                "I(component; token)": NONE if information is None else f"{information:.2f}",
                "A distribution": check_word(variant.check) or "by form",
            }
        )
    return _table(rows, 2)


def _cost_table(result: CompareResult) -> Table:
    rows = [
        {
            "Head": cost.label,
            "Verdict": cost.verdict,
            "CPU time ÷ control": f"{cost.ratio:.2f}",
            "Wins, nats": f"{cost.gain:+.4f}",
            "Must win, nats": f"{cost.needed:+.4f}",
        }
        for cost in result.costs
    ]
    return _table(rows, 2)


def compare_page(result: CompareResult, command: str = "") -> str:
    """The finding, tables for each regime, pictures, method, as HTML.

    Args:
        command: the command that was typed, for those who want to repeat it.
    """
    main = result.regimes[-1] if result.regimes else None
    sweeps = {} if main is None else {by: sweep_charts(result, main, by) for by in SWEEPS}
    return render(
        "studies/compare/page.html.j2",
        title=f"Output layers on {result.corpus}",
        verdict=result.verdict,
        answer=result.answer,
        footer=f"highrank {result.environment.highrank} · {result.environment.date} UTC · "
        f"{duration(sum(run.cpu_seconds for run in result.runs))} of CPU time in training",
        result=result,
        command=command,
        environment=environment_text(result.environment),
        notes=list(notes(result)),
        regimes=[
            {
                "title": f"Equal {regime.name}: {amount_text(regime)}",
                "table": _regime_table(result, regime),
                "note": regime_note(regime),
            }
            for regime in result.regimes
        ],
        variants=None if main is None else _variant_table(result),
        costs=_cost_table(result) if result.costs else None,
        learning=[
            _figure(chart, title)
            for chart, title in zip(learning_charts(result), LEARNING, strict=False)
        ],
        sweeps=[(SWEEPS[by], _sweep(charts)) for by, charts in sweeps.items() if charts],
        scatter=[
            _figure(chart, title, caption)
            for (title, caption), chart in zip(
                SCATTER.items(),
                (cost_chart(result), None if main is None else rank_chart(result, main)),
                strict=True,
            )
            if chart is not None
        ],
    )


def _figure(chart: Lines, title: str, caption: str = "") -> Figure:
    svg, description = to_svg(draw(chart)), describe(chart)
    return Figure(svg=svg, description=description, title=title, caption=caption)


def _sweep(charts: Sequence[Lines]) -> list[Figure]:
    caption = "Vertical lines: 95 % intervals of the difference to the control of the same d."
    titles = (chart.y.label.split(":")[0].split(",")[0] for chart in charts)
    return [
        _figure(chart, f"{title[0].upper()}{title[1:]}", "" if count else caption)
        for count, (chart, title) in enumerate(zip(charts, titles, strict=True))
    ]


def write_beside(result: CompareResult, page: Path) -> None:
    """Write a line for each run, as CSV, and the most telling charts, as PNG, beside the page."""
    runs = compare_csv(result)
    write_atomically(page.with_suffix(".csv"), lambda new: new.write_text(runs, "utf-8"))
    if result.regimes:
        swept = [sweep_charts(result, result.regimes[-1], by) for by in SWEEPS]
        charts = next((some[:NUM_PICTURED] for some in swept if some), learning_charts(result))
        title = f"Output layers on {result.corpus}, {len(result.regimes[-1].seeds)} seeds"
        picture = draw(*charts, size=(12.0 / len(charts), 4.6), margin=0.1, title=title)
        save_png(picture, page.with_suffix(".png"))


def compare_csv(result: CompareResult) -> str:
    """A line for every run and regime; a run that was not measured has one, too."""
    text = io.StringIO()
    names = ("variant", "label", "network", "kind", "K", "d", "D", "parameters")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            *names,
            "seed",
            "state",
            "disturbed",
            "regime",
            *MARK_FIELDS,
            "rank_1e-3",
            "specialisation",
        )
    )
    variants = {variant.name: variant for variant in result.variants}
    for run in result.runs:
        one = variants[run.variant]
        first = (
            *(one.name, one.label, one.network, one.spec, one.num_components, one.embedding_size),
            *(one.context_size, one.num_parameters, run.seed, run.state, run.is_disturbed),
        )
        last = [run.analysis.get(key) for key in ("effective_rank_1e-3", "specialisation")]
        marks: dict[str, Mark | None] = {**run.marks}
        for method, found in run.methods.items():
            marks |= {f"{regime} with {method}": mark for regime, mark in found.items()}
        for regime, mark in (marks or {"": None}).items():
            values = [None if mark is None else getattr(mark, name) for name in MARK_FIELDS]
            writer.writerow((*first, regime, *values, *last))
    return text.getvalue()
