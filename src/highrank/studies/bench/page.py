"""The page of `highrank bench loss`: time and memory, the table, and who wins.

The words of the benchmark's page: nothing in them depends on who wins.

Who wins `bench loss`: read from the numbers, so that the words stay true when they change.
"""

from pathlib import Path

from highrank.report.figure import Bars, save_png, to_svg
from highrank.report.formats import duration, environment_text, listed
from highrank.report.page import Code, Column, Figure, Grid, Page, Paragraph, Section, Strong, Table
from highrank.studies.bench.charts import draw_bars, memory_chart, time_chart
from highrank.studies.bench.harness import Measurement
from highrank.studies.bench.loss import WAYS, LossBenchResult, ShapeResult
from highrank.studies.bench.table import COLUMNS, cells, growth_text, mib, notes, ratio, shape_text


def loss_page(result: LossBenchResult) -> Page:
    """What was measured, for someone who has to choose."""
    return Page(
        title=TITLE,
        lead=LEAD,
        sections=(
            *(_shape_section(part) for part in result.shapes),
            Section("Memory and the vocabulary", (Paragraph((growth_text(result),)),)),
            Section("The variants", _contestants(result)),
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
        title=f"All variants at {part.shape.name}",
        caption=f"Highlighted: the fastest way to the loss. {LEVEL_TEXT}",
        columns=(
            Column("Variant", False),
            *(Column(name[0].upper() + name[1:]) for name in COLUMNS),
            Column("Note", False),
        ),
        rows=tuple((*cells(m), notes(m)) for m in part.measurements),
        highlighted=frozenset(index for index, m in rows if m.name in best),
    )


def _contestants(result: LossBenchResult) -> tuple[Paragraph, ...]:
    present = {m.name for part in result.shapes for m in part.measurements}
    return tuple(
        Paragraph((Strong(f"{name}: "), text)) for name, text in VARIANTS.items() if name in present
    )


def _method(result: LossBenchResult) -> tuple[Paragraph, ...]:
    quick = QUICK if result.quick else ""
    return (
        Paragraph((METHOD.format(rounds=result.rounds) + quick,)),
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


TITLE = "What the loss of a mixture costs"
LEAD = (
    "Time and memory of one forward and backward pass through the loss of a mixture of softmaxes: "
    "this package, the usual ways, and the limit that the matrix multiply sets. All ratios are of "
    "numbers from one run."
)
VARIANTS = {
    "limit": (
        "the three matrix multiplies that any way needs, alone, on the chunks of fused and into "
        "memory that is there already: no softmax, no loss."
    ),
    "fused": (
        "this package: gradients are made in the forward pass, a chunk of tokens at a time, so "
        "that three multiplies suffice."
    ),
    "chunked": (
        "this package: logits are computed again in the backward pass, a fourth multiply, for any "
        "upstream gradient."
    ),
    "composition": (
        "PyTorch’s own chunked linear_cross_entropy for each component of each token, and a "
        "logsumexp over the components; with the chunk that a search in the same run found best."
    ),
    "original": (
        "as the official code of the paper: a table of N × K × V probabilities, mixed, plus 1e-8, "
        "then the logarithm. The epsilon makes its loss a little different."
    ),
    "log-space": (
        "the exact table: N × K × V log-probabilities, a logsumexp over the components, then the "
        "targets."
    ),
    "softmax": (
        "a single softmax, computed as fused is, whose contexts are so large that a model with it "
        "has as many parameters as one with the mixture. It says less: it is what to pay if a "
        "mixture is not needed."
    ),
}
METHOD = (
    "Variants take turns, in an order that changes each round; the best of {rounds} rounds "
    "counts, after a warm-up. Before that, all ways were checked to yield the same loss, on the "
    "inputs that were timed, within one part in ten thousand. Memory is the peak of a fresh "
    "process for each variant, above what it held with its inputs ready: gradients count, "
    "inputs do not. Inputs are random and in float32; gradients go to contexts, weights of the "
    "components, output embedding and bias."
)
QUICK = " This was a quick run, with a tenth of the tokens and few rounds; its numbers are rough."


# What is this close to the lowest is level with it: the machine is not quieter than that.
LEVEL = 0.03
LEVEL_TEXT = "Numbers that differ by less than 3 % are level."


def time_verdict(result: ShapeResult) -> str:
    """Who is fastest, and by how much `fused` is not, where it is not."""
    ways = {m.name: m for m in result.measurements if m.name in WAYS and m.best is not None}
    if "fused" not in ways:
        return f"fused could not be measured: {_why(result, 'fused')}."
    leaders = fastest(list(ways.values()))
    others = sorted(
        (m for m in ways.values() if m.name not in leaders), key=lambda m: m.time_ratios["fused"]
    )
    limit = ratio(ways["fused"].time_ratios.get("limit"))
    if "fused" not in leaders:
        shares = [f"{name} takes {ratio(ways[name].time_ratios['fused'])}" for name in leaders]
        text = f"fused is not the fastest here: {listed(shares)} of its time. It is at {limit} × "
        return text + "the time of the limit."
    verb = "is the fastest way" if leaders == ["fused"] else "are the fastest ways"
    text = f"{listed(leaders)} {verb} to the loss; fused takes {limit} × the time of the limit."
    if others:
        slower = [f"{m.name} {ratio(m.time_ratios['fused'])}" for m in others]
        text += f" In units of its time: {listed(slower)}."
    return text


def memory_verdict(result: ShapeResult) -> str:
    """What `fused` needs, and who needs least and most."""
    ratios = {m.name: m.memory_ratios.get("fused") for m in result.measurements if m.name in WAYS}
    known = {name: value for name, value in ratios.items() if value is not None}
    peak = next((m.peak_bytes for m in result.measurements if m.name == "fused"), None)
    if peak is None or len(known) < 2:
        return "Memory could not be compared."
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    text = f"fused needs {mib(peak)} MiB beyond the inputs"
    if known[least] < 1 - LEVEL:
        text += f"; {least} needs least, {known[least]:.2f} × that"
    else:
        text += ", and no other way needs less"
    if known[most] > 1 + LEVEL:
        text += f"; {most} needs most, {known[most]:.2f} × that"
    return text + "."


def softmax_verdict(result: ShapeResult) -> str:
    """What the mixture costs beyond one softmax of its size."""
    softmax = next((m for m in result.measurements if m.name == "softmax"), None)
    share = None if softmax is None else softmax.time_ratios.get("fused")
    if share is None:
        return ""
    return (
        f"One softmax with as many parameters ({result.shape.softmax_size} numbers for each "
        f"token) takes {share:.2f} of fused’s time: that is the price of the mixture."
    )


def fastest(measurements: list[Measurement]) -> list[str]:
    """The names of the lowest time, and of those level with it; there must be times."""
    times = {m.name: m.best for m in measurements if m.best is not None}
    limit = min(times.values()) * (1 + LEVEL)
    return [name for name, best in times.items() if best <= limit]


def _why(result: ShapeResult, name: str) -> str:
    return next((m.failure for m in result.measurements if m.name == name and m.failure), "unknown")
