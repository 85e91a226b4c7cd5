"""The rows of a benchmark, as the terminal and the page show them."""

from rich import box
from rich.table import Table

from highrank.environment import Environment
from highrank.experiments.bench.loss_inputs import Shape
from highrank.experiments.bench.loss_result import LossBenchResult
from highrank.experiments.bench.result import Measurement
from highrank.experiments.bench.step import StepBenchResult
from highrank.reports.tables import duration

MIB = 2**20
COLUMNS = ("time ÷ limit", "time ÷ fused", "seconds", "MiB", "MiB ÷ fused")
UNITS = (
    "One forward and backward pass, float32. Seconds: best of {rounds} alternating rounds. MiB: "
    "peak memory above the inputs, in a fresh process. limit: the three matrix multiplies alone. "
    "softmax: one softmax with as many parameters."
)


def loss_table(result: LossBenchResult) -> Table:
    """All contestants: one group of rows per shape, 80 columns wide at most."""
    table = Table(
        title="Time and memory of the mixture's loss",
        caption="\n".join(_caption(result)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("shape", no_wrap=True)
    table.add_column("contestant", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name.replace(" ÷", "\n÷"), justify="right", no_wrap=True)
    for part in result.shapes:
        for index, measurement in enumerate(part.measurements):
            table.add_row(part.shape.name if index == 0 else "", *cells(measurement))
        table.add_section()
    return table


def cells(measurement: Measurement) -> tuple[str, ...]:
    """Name, time by limit's and by fused's, seconds, MiB, and MiB by fused's; – where unknown."""
    times, peaks = measurement.time_ratios, measurement.memory_ratios
    peak = measurement.peak_bytes
    return (
        measurement.name,
        ratio(times.get("limit")),
        ratio(times.get("fused")),
        "–" if measurement.best is None else f"{measurement.best:.3g}",
        "–" if peak is None else mib(peak),
        ratio(peaks.get("fused")),
    )


def notes(measurement: Measurement) -> str:
    """What is to be said of a contestant; empty if nothing."""
    return "; ".join(filter(None, (measurement.note, measurement.failure)))


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f}"


def shape_text(shape: Shape) -> str:
    return (
        f"N = {shape.num_tokens:,} tokens, K = {shape.num_components} components, "
        f"E = {shape.embedding_size}, V = {shape.vocab_size:,} words"
    )


def environment_text(environment: Environment) -> str:
    commit = "" if environment.commit is None else f" ({environment.commit})"
    return (
        f"highrank {environment.highrank}{commit}, torch {environment.torch}, Python "
        f"{environment.python}, {environment.threads} threads, {environment.cpu}, "
        f"{environment.platform}, {environment.date} UTC"
    )


def growth_text(result: LossBenchResult) -> str:
    """How the memory of `fused` grows with the vocabulary, and what it may."""
    growth = result.memory_growth
    small, large = growth.shapes
    sizes = f"From V = {small.vocab_size:,} to {large.vocab_size:,} (N = {large.num_tokens})"
    if growth.growth is None:
        why = growth.failure or "it cannot be read on this system"
        return f"{sizes}, the growth of the peak memory of fused is unknown: {why}."
    verdict = "" if growth.growth <= growth.allowed else " That is exceeded."
    return (
        f"{sizes}, the peak memory of fused grows by {mib(growth.growth)} MiB. Allowed are "
        f"{mib(growth.allowed)} MiB: the growth of the weight's own gradient, "
        f"{mib(growth.gradient_growth)} MiB, and 32 MiB.{verdict} A table of all logits would grow "
        f"by {mib(large.table_bytes - small.table_bytes)} MiB."
    )


def _caption(result: LossBenchResult) -> list[str]:
    said = [
        f"{part.shape.name} {measurement.name}: {notes(measurement)}."
        for part in result.shapes
        for measurement in part.measurements
        if notes(measurement)
    ]
    return [
        UNITS.format(rounds=result.rounds),
        *(f"{part.shape.name}: {shape_text(part.shape)}." for part in result.shapes),
        *said,
        growth_text(result),
        f"{environment_text(result.environment)}, {duration(result.elapsed)}.",
    ]


def step_table(result: StepBenchResult) -> Table:
    """One row per contestant, as ratios to ptb-mos."""
    table = Table(
        title="One training step of the paper's Penn Treebank models",
        caption=(
            f"Forward, backward, clipping and update, float32. Seconds: best of {result.rounds} "
            "alternating rounds. MiB: peak memory above model and inputs, in a fresh process.\n"
            f"{environment_text(result.environment)}, {duration(result.elapsed)}."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("contestant", "tokens", "seconds", "time\n÷ ptb-mos", "MiB", "MiB\n÷ ptb-mos"):
        table.add_column(name, justify="left" if name == "contestant" else "right", no_wrap=True)
    for m in result.measurements:
        table.add_row(
            m.name,
            f"{result.num_tokens[m.name]:,}",
            "–" if m.best is None else f"{m.best:.3g}",
            ratio(m.time_ratios.get("ptb-mos")),
            "–" if m.peak_bytes is None else mib(m.peak_bytes),
            ratio(m.memory_ratios.get("ptb-mos")),
        )
    return table
