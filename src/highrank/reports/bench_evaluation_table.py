"""What dynamic evaluation and the cache cost, as the terminal shows it."""

from rich import box
from rich.table import Table

from highrank.experiments.bench.evaluation import EvaluationBenchResult
from highrank.reports.bench_table import environment_text, mib, ratio
from highrank.reports.tables import duration


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
    names = ("contestant", "tokens", "seconds", "time ÷\nfirst row", "meant to be\nat most", "MiB")
    for name in names:
        table.add_column(name, justify="left" if name == "contestant" else "right", no_wrap=True)
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
