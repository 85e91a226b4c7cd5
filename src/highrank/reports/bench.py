"""The page of `highrank bench loss`: time and memory, the table, and who wins."""

from pathlib import Path

from highrank.experiments.bench.loss import WAYS
from highrank.experiments.bench.loss_result import LossBenchResult, ShapeResult
from highrank.reports import bench_text
from highrank.reports.bench_charts import draw_bars, memory_chart, time_chart
from highrank.reports.bench_table import (
    COLUMNS,
    cells,
    environment_text,
    growth_text,
    notes,
    shape_text,
)
from highrank.reports.bench_verdict import (
    LEVEL_TEXT,
    fastest,
    memory_verdict,
    softmax_verdict,
    time_verdict,
)
from highrank.reports.charts import Bars, save_png, to_svg
from highrank.reports.page import (
    Code,
    Column,
    Figure,
    Grid,
    Page,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.reports.tables import duration


def loss_page(result: LossBenchResult) -> Page:
    """What was measured, for someone who has to choose."""
    return Page(
        title=bench_text.TITLE,
        lead=bench_text.LEAD,
        sections=(
            *(_shape_section(part) for part in result.shapes),
            Section("Memory and the vocabulary", (Paragraph((growth_text(result),)),)),
            Section("The contestants", _contestants(result)),
            Section("How this was measured", _method(result)),
        ),
        footer=f"{environment_text(result.environment)} · {duration(result.elapsed)}",
    )


def loss_picture(result: LossBenchResult, path: Path) -> None:
    """Write a PNG of 1200 × 600 pixels: time and memory at the first shape."""
    part = result.shapes[0]
    every = (
        time_chart(part.measurements, "limit", f"{part.shape.name}: time"),
        memory_chart(part.measurements, f"{part.shape.name}: memory"),
    )
    charts = [chart for chart in every if chart.categories]
    save_png(draw_bars(*charts, size=(8 / len(charts), 4), margin=0.1), path, dpi=150)


def _shape_section(part: ShapeResult) -> Section:
    verdicts = (time_verdict(part), memory_verdict(part), softmax_verdict(part))
    return Section(
        part.shape.name,
        (
            Paragraph((Strong(f"{shape_text(part.shape)}. "), " ".join(filter(None, verdicts)))),
            *_grid(part),
            _table(part),
        ),
    )


def _grid(part: ShapeResult) -> list[Grid]:
    charts = (
        (
            "Time",
            "Seconds, divided by those of the limit. Lower is better.",
            time_chart(part.measurements, "limit"),
        ),
        (
            "Memory",
            "Peak above the inputs, in MiB, on a log scale. Lower is better.",
            memory_chart(part.measurements),
        ),
    )
    figures = tuple(
        Figure(
            svg=to_svg(draw_bars(chart)),
            title=title,
            caption=caption,
            description=_described(chart),
        )
        for title, caption, chart in charts
        if chart.categories
    )
    return [Grid(figures)] if figures else []


def _table(part: ShapeResult) -> Table:
    measured = [m for m in part.measurements if m.name in WAYS and m.best is not None]
    best = fastest(measured) if measured else []
    rows = enumerate(part.measurements)
    return Table(
        title=f"All contestants at {part.shape.name}",
        caption=f"Highlighted: the fastest way to the loss. {LEVEL_TEXT}",
        columns=(
            Column("Contestant", False),
            *(Column(name[0].upper() + name[1:]) for name in COLUMNS),
            Column("Note", False),
        ),
        rows=tuple((*cells(m), notes(m)) for m in part.measurements),
        highlighted=frozenset(index for index, m in rows if m.name in best),
    )


def _contestants(result: LossBenchResult) -> tuple[Paragraph, ...]:
    present = {m.name for part in result.shapes for m in part.measurements}
    return tuple(
        Paragraph((Strong(f"{name}: "), text))
        for name, text in bench_text.CONTESTANTS.items()
        if name in present
    )


def _method(result: LossBenchResult) -> tuple[Paragraph, ...]:
    quick = bench_text.QUICK if result.quick else ""
    return (
        Paragraph((bench_text.METHOD.format(rounds=result.rounds) + quick,)),
        Paragraph(
            (
                f"{environment_text(result.environment)}. ",
                Code("highrank bench loss"),
                " measures this machine.",
            )
        ),
    )


def _described(chart: Bars) -> str:
    points = zip(chart.categories, chart.series[0].y, strict=True)
    return f"{chart.y.label}: " + ", ".join(f"{name} {value:.2f}" for name, value in points) + "."
