"""The rows of a benchmark, as the terminal and the page show them.

The table of `bench audit`: what singular values cost, and how exact they are.

What dynamic evaluation and the cache cost, as the terminal shows it.
"""

from rich import box
from rich.table import Table

from highrank.report.formats import duration, environment_text
from highrank.studies.bench.baselines import Shape
from highrank.studies.bench.evaluation import EvaluationBenchResult
from highrank.studies.bench.harness import Measurement
from highrank.studies.bench.loss import LossBenchResult
from highrank.studies.bench.spectrum import LINEAR_CHECK, AuditBenchResult, Size
from highrank.studies.bench.step import StepBenchResult

MIB = 2**20
COLUMNS = ("time ÷ limit", "time ÷ fused", "seconds", "MiB", "MiB ÷ fused")
UNITS = (
    "One forward and backward pass, float32. Seconds: best of {rounds} alternating rounds. MiB: "
    "peak memory above the inputs, in a fresh process. limit: the three matrix multiplies alone. "
    "softmax: one softmax with as many parameters."
)


def loss_table(result: LossBenchResult) -> Table:
    """All variants: one group of rows per shape, 80 columns wide at most."""
    table = Table(
        title="Time and memory of the mixture's loss",
        caption="\n".join(_caption(result)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("shape", no_wrap=True)
    table.add_column("variant", no_wrap=True)
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
    """What is to be said of a variant; empty if nothing."""
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
    """One row per variant, as ratios to ptb-mos."""
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
    for name in ("variant", "tokens", "seconds", "time\n÷ ptb-mos", "MiB", "MiB\n÷ ptb-mos"):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
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


SPECTRUM_COLUMNS = (
    "seconds",
    "time\n÷ svd",
    "MiB",
    "error\n÷ σ_max",
    "error\n÷ σ",
    "floor\n÷ σ_max",
)


def bench_audit_table(result: AuditBenchResult) -> Table:
    """One row per variant, 80 columns wide at most."""
    table = Table(
        title=f"Singular values of log-probabilities: {_size_text(result.size)}",
        caption="\n".join(_spectrum_caption(result)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("variant", no_wrap=True)
    for name in SPECTRUM_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for measurement in result.measurements:
        table.add_row(*_cells(result, measurement))
    return table


def _cells(result: AuditBenchResult, measurement: Measurement) -> tuple[str, ...]:
    error = result.errors.get(measurement.name)
    peak, share = measurement.peak_bytes, measurement.time_ratios.get("svd")
    return (
        measurement.name,
        "–" if measurement.best is None else _seconds(measurement.best),
        "–" if share is None else f"{share:.2g}" if share < 0.1 else ratio(share),
        "–" if peak is None else mib(peak),
        *(
            ("–", "–", "–")
            if error is None
            else map(_power, (error.absolute, error.relative, error.floor))
        ),
    )


def _spectrum_caption(result: AuditBenchResult) -> list[str]:
    rounds = "once" if result.rounds == 1 else f"best of {result.rounds} alternating rounds"
    size = LINEAR_CHECK
    return [
        f"Seconds: {rounds}, log-probabilities in float64 included; alone they are the last row. "
        "MiB: peak memory above the inputs, in a fresh process. error: the largest difference from "
        "the svd, as a share of the largest singular value, and of each one above float32's "
        "round-off. floor: what the method says it cannot see below.",
        f"linear: another matrix, of one softmax with E = {result.size.embedding_size}, so that "
        f"its time is no ratio of the same work; its error is from {_size_text(size)}.",
        *(f"{m.name}: {notes(m)}." for m in result.measurements if notes(m)),
        f"{environment_text(result.environment)}, {duration(result.elapsed)}.",
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _power(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}"


def _size_text(size: Size) -> str:
    return f"{size.num_contexts:,} contexts × {size.vocab_size:,} words"


def evaluation_table(result: EvaluationBenchResult) -> Table:
    """One group of rows per comparison; the first row of each is what the others are divided by."""
    table = Table(
        title="Evaluation that learns or remembers, and what it costs",
        caption=(
            f"Segments of {result.segment} tokens. Seconds: best of {result.rounds} alternating "
            "rounds. MiB: peak memory above model, text and gradient statistics, in a fresh "
            "process.\n"
            f"{environment_text(result.environment)}, {duration(result.elapsed)}."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    names = ("variant", "tokens", "seconds", "time ÷\nfirst row", "meant to be\nat most", "MiB")
    for name in names:
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    for comparison in result.comparisons:
        for index, m in enumerate(comparison.measurements):
            table.add_row(
                m.name,
                f"{comparison.num_tokens:,}",
                "–" if m.best is None else f"{m.best:.3g}",
                ratio(m.time_ratios.get(comparison.baseline)),
                f"{comparison.limit:g}" if index == 1 else "",
                "–" if m.peak_bytes is None else mib(m.peak_bytes),
            )
        table.add_section()
    return table
