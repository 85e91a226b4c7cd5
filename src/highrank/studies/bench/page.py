"""The table of all benchmarks, their pictures, and the page of `bench loss`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from highrank.report import page
from highrank.report.figure import (
    TRUTH,
    Axis,
    Bars,
    Series,
    describe,
    draw,
    line_style,
    save_png,
    to_svg,
)
from highrank.report.formats import count, duration, environment_text, listed, make_table, mib
from highrank.studies.bench.baselines import GROWTH, Shape
from highrank.studies.bench.harness import BenchResult, Group, Measurement, joined
from highrank.studies.bench.heads import CONTROL, MULTIPLIES
from highrank.studies.bench.loss import IMPLEMENTATIONS, LossBenchResult, allowed_growth

# Times this close to the lowest are level with it: the machine is not quieter than that.
LEVEL = 0.03
DOTS = line_style("series-1", marker="o", markersize=7.0)


def bench_table(result: BenchResult, *lines: str) -> Table:
    """All variants, under the names of their groups.

    Args:
        lines: for the caption, besides method, notes and environment.
    """
    rounds = "once" if result.rounds == 1 else f"best of {result.rounds} alternating rounds"
    units = f"Seconds: {rounds}. MiB: peak memory above the inputs, in a fresh process."
    where = f"{environment_text(result.environment)}, {duration(result.elapsed)}."
    notes = [
        f"{' '.join(filter(None, (group.name, m.name)))}: {note}."
        for group in result.groups
        for m in group.measurements
        if (note := joined((m.note, m.failure)))
    ]
    table = make_table(
        ("variant",),
        [name.replace(" ÷", "\n÷") for name in _columns(result)],
        title=result.title,
        caption="\n".join((f"{result.method} {units}", *lines, *notes, where)),
    )
    for group in result.groups:
        if group.name:
            table.add_row(group.name)
        for m in group.measurements:
            table.add_row(m.name, *_cells(m, group, result.baselines))
        table.add_section()
    return table


def _columns(result: BenchResult) -> list[str]:
    """Titles of what follows the name of a variant."""
    times = [f"time ÷ {name}" for name in result.baselines]
    memory = f"MiB ÷ {result.baselines[-1]}"
    return [*result.groups[0].numbers, "seconds", *times, "MiB", memory]


def _cells(measurement: Measurement, group: Group, baselines: Sequence[str]) -> list[str]:
    """The cells of the columns."""
    numbers = [known.get(measurement.name) for known in group.numbers.values()]
    times = [measurement.time_ratios.get(name) for name in baselines]
    best = measurement.best
    return [
        *map(_number, numbers),
        f"{best:.3g}" if best is not None and best < 100 else _number(best),
        *map(_number, times),
        mib(measurement.peak_bytes),
        count(measurement.memory_ratios.get(baselines[-1]), 2),
    ]


def _number(value: float | None) -> str:
    """Two decimals, or as few digits as tell much or little from nothing."""
    if value is not None and value < 0.1:
        return f"{value:.2g}"
    return count(value, 2 if value is None or value < 100 else 0)


def loss_table(result: LossBenchResult) -> Table:
    """The table of `bench loss`, with sizes, doubts and the growth of memory below it."""
    sizes = [f"{name}: {shape_text(shape)}." for name, shape in result.shapes.items()]
    doubts = filter(None, map(_noise_text, result.groups))
    return bench_table(result, *sizes, *doubts, _growth_text(result))


def shape_text(shape: Shape) -> str:
    return (
        f"N = {shape.num_tokens:,} tokens, K = {shape.num_components} components, "
        f"E = {shape.embedding_size}, V = {shape.vocab_size:,}"
    )


def _noise_text(group: Group) -> str:
    """A warning if an implementation took less time than the lower bound; else empty."""
    ratios = {m.name: m.time_ratios.get("matmul", 1.0) for m in group.measurements}
    below = [name for name in IMPLEMENTATIONS if ratios.get(name, 1.0) < 1]
    if not below:
        return ""
    return (
        f"At {group.name}, {listed(below)} measured below the matmul lower bound, which is "
        "measured, too: the times of this run are no more accurate than that."
    )


def _growth_text(result: LossBenchResult) -> str:
    """Growth of the memory of `fused` with the vocabulary, beside what is allowed."""
    small, large = result.growth
    before, after = (f"{shape.vocab_size:,}" for shape in GROWTH)
    text = f"From V = {before} to {after} (N = {GROWTH[0].num_tokens}), the peak memory of fused"
    if small.num_bytes is None or large.num_bytes is None:
        why = small.failure or large.failure or "it cannot be read on this system"
        return f"{text} grows by an unknown amount: {why}."
    growth, allowed = large.num_bytes - small.num_bytes, allowed_growth(GROWTH)
    verdict = "" if growth <= allowed else " That is exceeded."
    return (
        f"{text} grows by {mib(growth)} MiB. Allowed are {mib(allowed)} MiB: the growth of the "
        f"weight's own gradient, and 32 MiB.{verdict}"
    )


def loss_page(result: LossBenchResult) -> str:
    """The page of `bench loss`, as HTML."""
    return page.render(
        "studies/bench/page.html.j2",
        title="What the loss of a mixture costs",
        verdict=verdict(result),
        answer="Fastest implementation of the mixture's loss: "
        f"{'; '.join(map(_winners, result.groups))}.",
        footer=f"{environment_text(result.environment)} · {duration(result.elapsed)}",
        sections=[_section(group, result) for group in result.groups],
        growth=_growth_text(result),
        result=result,
    )


def verdict(result: LossBenchResult) -> str:
    """What is fastest, in at most twelve words."""
    found = [{m.name for m in fastest(group)} for group in result.groups]
    everywhere = [name for name in IMPLEMENTATIONS if all(name in names for names in found)]
    if everywhere:
        where = "at all shapes" if len(found) > 1 else f"at {result.groups[0].name}"
        return f"Fastest {where}: {listed(everywhere)}."
    return "No implementation is the fastest at all shapes."


def _winners(group: Group) -> str:
    rows = [
        (m.name, count(m.time_ratios.get("matmul"), 2), mib(m.peak_bytes)) for m in fastest(group)
    ]
    if not rows:
        return f"none could be measured at {group.name}"
    names, times, peaks = map(listed, zip(*rows, strict=True))
    return f"{names} at {group.name} ({times} × the matmul lower bound, {peaks} MiB of peak memory)"


def fastest(group: Group) -> list[Measurement]:
    """The implementations with the lowest time, and those level with it."""
    times = {m.name: m.best for m in group.measurements if m.name in IMPLEMENTATIONS and m.best}
    level = min(times.values(), default=0.0) * (1 + LEVEL)
    return [m for m in group.measurements if times.get(m.name, math.inf) <= level]


def _section(group: Group, result: LossBenchResult) -> dict[str, object]:
    """Values of one shape for the template."""
    found, leaders = {m.name: m for m in group.measurements}, fastest(group)
    shape = result.shapes[group.name]
    return {
        "shape": shape,
        "sizes": shape_text(shape),
        "fused": found["fused"],
        "bound": count(found["fused"].time_ratios.get("matmul"), 2),
        "peak": mib(found["fused"].peak_bytes),
        "noise": _noise_text(group),
        "softmax": count(found["softmax"].time_ratios.get("fused"), 2),
        "figures": [
            page.Figure(svg=to_svg(draw(chart)), title=title, description=describe(chart))
            for title, chart in _loss_charts(group).items()
        ],
        "table": page.Table(
            title=f"All variants at {group.name}",
            caption="Highlighted: the fastest implementation. Times within 3 % are level.",
            columns=(
                page.Column("variant", False),
                *map(page.Column, _columns(result)),
                page.Column("note", False),
            ),
            rows=tuple(
                (m.name, *_cells(m, group, result.baselines), joined((m.note, m.failure)))
                for m in group.measurements
            ),
            highlighted=frozenset(i for i, m in enumerate(group.measurements) if m in leaders),
        ),
    }


def loss_picture(result: LossBenchResult, path: Path) -> None:
    """Write a PNG of 1200 × 600 pixels: time and memory at the first shape."""
    charts = [
        replace(chart, title=f"{result.groups[0].name}: {title.lower()}")
        for title, chart in _loss_charts(result.groups[0]).items()
    ]
    title = f"Loss and gradients of a mixture: {shape_text(result.shapes[result.groups[0].name])}"
    save_png(draw(*charts, size=(8 / len(charts), 4), margin=0.1, title=title), path, dpi=150)


def _loss_charts(group: Group) -> dict[str, Bars]:
    """Times divided by the lower bound's, and peak memory; without what was not measured."""
    rows = group.measurements
    times = {m.name: m.time_ratios["matmul"] for m in rows if "matmul" in m.time_ratios}
    peaks = {m.name: m.peak_bytes / 2**20 for m in rows if m.peak_bytes}
    charts = {
        "Time": _bars(times, Axis(label="time ÷ matmul"), "fused"),
        "Memory": _bars(peaks, Axis(label="peak memory, MiB", is_log=True), "fused"),
    }
    return {title: chart for title, chart in charts.items() if chart.categories}


def head_picture(result: BenchResult, path: Path) -> None:
    """Write a PNG of the heads by their time, at the first and at the last size."""
    groups = {group.name: group for group in (result.groups[0], result.groups[-1])}
    charts = [_head_chart(group) for group in groups.values()]
    title = "Output layers: time of loss and gradients, in multiples of one softmax"
    save_png(draw(*charts, size=(8, 4.5), margin=0.1, title=title), path, dpi=120)


def _head_chart(group: Group) -> Bars:
    """Bars of the times, the shortest first, and what is multiplied as dots."""
    times = {m.name: m.time_ratios[CONTROL] for m in group.measurements if m.time_ratios}
    times = dict(sorted(times.items(), key=lambda item: item[1]))
    bars = _bars(times, Axis(label="in multiples of one softmax"), CONTROL)
    flops = [group.numbers[MULTIPLIES][name] or 0.0 for name in times]
    dots = Series(label="multiplies", x=range(len(flops)), y=flops, style=DOTS)
    return replace(bars, series=(replace(bars.series[0], label="time"), dots), title=group.name)


def _bars(values: Mapping[str, float], y: Axis, highlighted: str) -> Bars:
    series = Series(label=y.label, x=range(len(values)), y=list(values.values()), style=TRUTH)
    return Bars(
        categories=tuple(values),
        series=(series,),
        x=Axis(label=""),
        y=y,
        has_values=True,
        highlighted=highlighted,
    )
