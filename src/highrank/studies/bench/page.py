"""How benchmarks are shown beyond the terminal: the page of `bench loss`, and pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from highrank.report import page
from highrank.report.figure import Axis, Bars, Series, draw, save_png, to_svg
from highrank.report.formats import duration, environment_text, listed, mib, ratio
from highrank.report.theme import TRUTH, Style
from highrank.studies.bench.harness import Measurement, joined
from highrank.studies.bench.heads import CONTROL, HeadBenchResult, HeadSizes
from highrank.studies.bench.loss import IMPLEMENTATIONS, LossBenchResult, ShapeResult
from highrank.studies.bench.table import (
    LOSS_COLUMNS,
    growth_text,
    loss_cells,
    noise_text,
    shape_text,
)

# What is this close to the lowest is level with it: the machine is not quieter than that.
LEVEL = 0.03
MULTIPLIES = Style("series-1", marker="o", marker_size=7.0)


def head_picture(result: HeadBenchResult, path: Path) -> None:
    """Write a PNG of the heads by their time, at the first and at the last size."""
    sizes = {size.vocab_size: size for size in (result.sizes[0], result.sizes[-1])}
    charts = [_head_chart(size) for size in sizes.values()]
    save_png(draw(*charts, size=(8, 4.5), margin=0.1), path, dpi=120)


def _head_chart(size: HeadSizes) -> Bars:
    """Bars of the times, the shortest first, and what is multiplied as dots."""
    times = {m.name: m.time_ratios[CONTROL] for m in size.measurements if m.time_ratios}
    times = dict(sorted(times.items(), key=lambda item: item[1]))
    flops = [size.flop_ratios[name] for name in times]
    bars = _bars(
        times,
        Axis(label="in multiples of one softmax"),
        f"E = {size.embedding_size}, V = {size.vocab_size:,}",
    )
    dots = Series(label="multiplies", x=range(len(flops)), y=flops, style=MULTIPLIES)
    return replace(bars, series=(replace(bars.series[0], label="time"), dots), highlighted=CONTROL)


def loss_page(result: LossBenchResult) -> str:
    """The page of `bench loss`, as HTML."""
    return page.render(
        "studies/bench/page.html.j2",
        title="What the loss of a mixture costs",
        answer=answer(result),
        footer=f"{environment_text(result.environment)} · {duration(result.elapsed)}",
        sections=[_section(part) for part in result.shapes],
        growth=growth_text(result),
        result=result,
    )


def loss_picture(result: LossBenchResult, path: Path) -> None:
    """Write a PNG of 1200 × 600 pixels: time and memory at the first shape."""
    part = result.shapes[0]
    both = (
        time_chart(part.measurements, f"{part.shape.name}: time"),
        memory_chart(part.measurements, f"{part.shape.name}: memory"),
    )
    charts = [chart for chart in both if chart.categories]
    save_png(draw(*charts, size=(8 / len(charts), 4), margin=0.1), path, dpi=150)


def answer(result: LossBenchResult) -> str:
    """Which implementations are fastest, and how far they are from the lower bound."""
    return (
        f"Fastest implementation of the mixture's loss: {'; '.join(map(_winners, result.shapes))}."
    )


def _winners(part: ShapeResult) -> str:
    rows = [(m.name, ratio(m.time_ratios.get("matmul")), mib(m.peak_bytes)) for m in fastest(part)]
    if not rows:
        return f"none could be measured at {part.shape.name}"
    names, times, peaks = map(listed, zip(*rows, strict=True))
    return (
        f"{names} at {part.shape.name} ({times} × the matmul lower bound, {peaks} MiB of peak "
        "memory)"
    )


def fastest(part: ShapeResult) -> list[Measurement]:
    """The implementations with the lowest time, and those level with it."""
    times = {m.name: m.best for m in part.measurements if m.name in IMPLEMENTATIONS and m.best}
    level = min(times.values(), default=0.0) * (1 + LEVEL)
    return [m for m in part.measurements if times.get(m.name, math.inf) <= level]


def _section(part: ShapeResult) -> dict[str, object]:
    found = {m.name: m for m in part.measurements}
    return {
        "shape": part.shape,
        "sizes": shape_text(part.shape),
        "fused": found["fused"],
        "bound": ratio(found["fused"].time_ratios.get("matmul")),
        "peak": mib(found["fused"].peak_bytes),
        "noise": noise_text(part),
        "softmax": ratio(found["softmax"].time_ratios.get("fused")),
        "figures": _figures(part),
        "table": _page_table(part),
    }


def _figures(part: ShapeResult) -> list[page.Figure]:
    charts = {
        "Time": (time_chart(part.measurements), "Divided by that of the matmul lower bound."),
        "Memory": (memory_chart(part.measurements), "Peak above the inputs, on a log scale."),
    }
    return [
        page.Figure(
            svg=to_svg(draw(chart)),
            title=title,
            caption=f"{caption} Lower is better.",
            description=_description(chart),
        )
        for title, (chart, caption) in charts.items()
        if chart.categories
    ]


def _page_table(part: ShapeResult) -> page.Table:
    leaders = fastest(part)
    return page.Table(
        title=f"All variants at {part.shape.name}",
        caption="Highlighted: the fastest implementation. Times within 3 % are level.",
        columns=(
            page.Column("Variant", False),
            *(page.Column(name[0].upper() + name[1:]) for name in LOSS_COLUMNS),
            page.Column("Note", False),
        ),
        rows=tuple((*loss_cells(m), joined((m.note, m.failure))) for m in part.measurements),
        highlighted=frozenset(i for i, m in enumerate(part.measurements) if m in leaders),
    )


def time_chart(measurements: Sequence[Measurement], title: str = "") -> Bars:
    """Times, divided by the lower bound's."""
    ratios = {m.name: m.time_ratios["matmul"] for m in measurements if "matmul" in m.time_ratios}
    return _bars(ratios, Axis(label="time ÷ matmul"), title)


def memory_chart(measurements: Sequence[Measurement], title: str = "") -> Bars:
    """Peak memory above the inputs, in MiB, on a log scale."""
    peaks = {m.name: m.peak_bytes / 2**20 for m in measurements if m.peak_bytes}
    return _bars(peaks, Axis(label="peak memory, MiB", is_log=True), title)


def _bars(values: Mapping[str, float], y: Axis, title: str) -> Bars:
    series = Series(label=y.label, x=range(len(values)), y=list(values.values()), style=TRUTH)
    return Bars(
        categories=tuple(values),
        series=(series,),
        x=Axis(label=""),
        y=y,
        title=title,
        has_values=True,
        highlighted="fused",
    )


def _description(chart: Bars) -> str:
    points = zip(chart.categories, chart.series[0].y, strict=True)
    return f"{chart.y.label}: " + ", ".join(f"{name} {value:.2f}" for name, value in points) + "."
