"""The table of `bench audit`: what singular values cost, and how exact they are."""

from rich import box
from rich.table import Table

from highrank.experiments.bench.audit import LINEAR_CHECK, AuditBenchResult
from highrank.experiments.bench.audit_contestants import Size
from highrank.experiments.bench.result import Measurement
from highrank.reports.bench_table import environment_text, mib, notes, ratio
from highrank.reports.tables import duration

COLUMNS = ("seconds", "time\n÷ svd", "MiB", "error\n÷ σ_max", "error\n÷ σ", "floor\n÷ σ_max")


def bench_audit_table(result: AuditBenchResult) -> Table:
    """One row per contestant, 80 columns wide at most."""
    table = Table(
        title=f"Singular values of log-probabilities: {_size_text(result.size)}",
        caption="\n".join(_caption(result)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("contestant", no_wrap=True)
    for name in COLUMNS:
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


def _caption(result: AuditBenchResult) -> list[str]:
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
