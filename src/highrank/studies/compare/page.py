"""The page of `highrank compare`: page.html.j2 has the prose, this file its tables and pictures."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from highrank.report.figure import Lines, describe, draw, save_png, to_svg
from highrank.report.formats import duration, environment_text
from highrank.report.page import Column, Figure, Table, render
from highrank.studies.compare.answer import TITLES, amount_text
from highrank.studies.compare.charts import cost_chart, learning_chart, rank_chart
from highrank.studies.compare.record import Mark
from highrank.studies.compare.result import CompareResult, Regime
from highrank.studies.compare.sweeps import sweep_charts
from highrank.studies.compare.table import (
    cost_rows,
    notes,
    perplexity,
    regime_note,
    relative,
    variant_rows,
)

SIZE = (7.0, 4.4)
SWEEPS = {"components": "The number of components", "size": "The size d"}
# Charts of a sweep that a picture shows: loss, gap and rank.
NUM_PICTURED = 3
MARK_FIELDS = tuple(Mark.__dataclass_fields__)


def compare_page(result: CompareResult, command: str = "") -> str:
    """The finding, tables for each regime, pictures, method, as HTML.

    Args:
        command: what was typed, for those who want to repeat it.
    """
    main = result.regimes[-1] if result.regimes else None
    sweeps = {} if main is None else {by: sweep_charts(result, main, by) for by in SWEEPS}
    return render(
        "studies/compare/page.html.j2",
        title=f"Output layers on {result.corpus}",
        answer=result.answer,
        footer=f"highrank {result.environment.highrank} · {result.environment.date} UTC · "
        f"{duration(sum(run.cpu_seconds for run in result.runs))} of CPU time in training",
        result=result,
        command=command,
        environment=environment_text(result.environment),
        notes=notes(result),
        regimes=[_regime(regime) for regime in result.regimes],
        variants=_table(VARIANT_TITLES, variant_rows(result), 2) if main is not None else None,
        costs=_table(COST_TITLES, cost_rows(result), 2) if result.costs else None,
        learning=_figures(*(learning_chart(result, by) for by in ("tokens", "seconds"))),
        sweeps=[(SWEEPS[by], _sweep(charts)) for by, charts in sweeps.items() if charts],
        rank=_figures(None if main is None else rank_chart(result, main)),
        cost=_figures(cost_chart(result)),
    )


VARIANT_TITLES = (
    "Head",
    "d",
    "Layers",
    "Parameters",
    "Tokens",
    "CPU s",
    "Gap, nats",
    "Rank, ε = 10⁻³",
    "I(component; token)",
)
COST_TITLES = ("Head", "Verdict", "CPU time ÷ control", "Wins, nats", "Must win, nats")
REGIME_TITLES = (
    "Head",
    "d",
    "On valid",
    "Valid",
    "Test",
    "Valid − control, %",
    "Test − control, %",
)


def _regime(regime: Regime) -> dict[str, object]:
    rows = [
        (
            row.label,
            str(row.embedding_size),
            "–" if row.valid is None else row.valid.verdict,
            perplexity(row.valid_loss, row.valid_deviation),
            perplexity(row.test_loss, row.test_deviation),
            relative(row.valid),
            relative(row.test),
        )
        for row in regime.rows
    ]
    best = frozenset(i for i, row in enumerate(regime.rows) if row.name == regime.best)
    title = TITLES[regime.name].capitalize()
    return {
        "title": f"{title}: {amount_text(regime)}",
        "table": _table(REGIME_TITLES, rows, 3, best),
        "note": regime_note(regime),
    }


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    num_text: int,
    highlighted: frozenset[int] = frozenset(),
) -> Table:
    """The first columns are text, the others numbers."""
    return Table(
        columns=tuple(Column(title, i >= num_text) for i, title in enumerate(titles)),
        rows=tuple(tuple(row) for row in rows),
        highlighted=highlighted,
    )


def _figures(*charts: Lines | None) -> list[Figure]:
    return [
        Figure(svg=to_svg(draw(chart, size=SIZE)), description=describe(chart))
        for chart in charts
        if chart is not None
    ]


def _sweep(charts: Sequence[Lines]) -> list[Figure]:
    caption = "Vertical lines: 95 % intervals of the difference to the control of the same d."
    titles = (chart.y.label.split(":")[0].split(",")[0] for chart in charts)
    return [
        Figure(
            svg=to_svg(draw(chart)),
            description=describe(chart),
            title=f"{title[0].upper()}{title[1:]}",
            caption="" if count else caption,
        )
        for count, (chart, title) in enumerate(zip(charts, titles, strict=True))
    ]


def compare_picture(result: CompareResult, path: Path) -> None:
    """Write the most telling charts as a PNG: what K or d does, else the learning curves."""
    swept = [sweep_charts(result, result.regimes[-1], by) for by in SWEEPS if result.regimes]
    curves = [learning_chart(result, by) for by in ("tokens", "seconds")]
    charts = next((some[:NUM_PICTURED] for some in swept if some), None)
    if charts is None:
        charts = [chart for chart in curves if chart is not None]
    if not charts:
        raise ValueError("a picture must show at least one validation, got none")
    save_png(draw(*charts, size=(12.0 / len(charts), 4.6), margin=0.1), path)


def compare_csv(result: CompareResult) -> str:
    """A line for every run and regime; a run that was not measured has one, too."""
    text = io.StringIO()
    names = ("variant", "label", "kind", "K", "d", "D", "parameters", "seed", "state", "disturbed")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*names, "regime", *MARK_FIELDS, "rank_1e-3", "specialisation"))
    variants = {variant.name: variant for variant in result.variants}
    for run in result.runs:
        variant = variants[run.variant]
        first = (
            *(
                variant.name,
                variant.label,
                variant.spec,
                variant.num_components,
                variant.embedding_size,
            ),
            *(variant.context_size, variant.num_parameters, run.seed, run.state, run.is_disturbed),
        )
        last = [run.analysis.get(key) for key in ("effective_rank_1e-3", "specialisation")]
        marks: dict[str, Mark | None] = {**run.marks}
        marks |= {f"{regime} with cache": mark for regime, mark in run.cache.items()}
        for regime, mark in (marks or {"": None}).items():
            values = [None if mark is None else getattr(mark, name) for name in MARK_FIELDS]
            writer.writerow((*first, regime, *values, *last))
    return text.getvalue()
