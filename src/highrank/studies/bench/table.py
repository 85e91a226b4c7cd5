"""How benchmarks are shown in the terminal: each as a table."""

from collections.abc import Iterable

from rich.table import Table

from highrank.report.formats import duration, environment_text, listed, make_table, mib, ratio
from highrank.studies.bench.baselines import Shape
from highrank.studies.bench.evaluation import EvaluationBenchResult
from highrank.studies.bench.harness import BenchResult, Measurement, joined
from highrank.studies.bench.heads import CONTROL, HeadBenchResult
from highrank.studies.bench.huggingface import BODY, OURS, HuggingFaceBenchResult
from highrank.studies.bench.loss import IMPLEMENTATIONS, LossBenchResult, ShapeResult
from highrank.studies.bench.sharded import ONE, ShardedBenchResult
from highrank.studies.bench.spectrum import LINEAR_CHECK, AuditBenchResult, Size
from highrank.studies.bench.step import StepBenchResult

LOSS_COLUMNS = ("time ÷ matmul", "time ÷ fused", "seconds", "MiB", "MiB ÷ fused")


def loss_table(result: LossBenchResult) -> Table:
    """One group of rows per shape."""
    table = make_table(
        ("shape", "variant"),
        [name.replace(" ÷", "\n÷") for name in LOSS_COLUMNS],
        title="Time and memory of the mixture's loss",
        caption=_caption(
            result,
            f"One forward and backward pass, float32. {_units(result.rounds, 'the inputs')} "
            "matmul: the matmul lower bound, three matrix multiplies alone. softmax: one softmax "
            "with as many parameters.",
            *(f"{part.shape.name}: {shape_text(part.shape)}." for part in result.shapes),
            *(f"{p.shape.name} {line}" for p in result.shapes for line in _notes(p.measurements)),
            *filter(None, map(noise_text, result.shapes)),
            growth_text(result),
        ),
    )
    for part in result.shapes:
        for index, measurement in enumerate(part.measurements):
            table.add_row(part.shape.name if index == 0 else "", *loss_cells(measurement))
        table.add_section()
    return table


def step_table(result: StepBenchResult) -> Table:
    """As ratios to ptb-mos."""
    units = _units(result.rounds, "model and inputs")
    table = make_table(
        ("variant",),
        ("tokens", "seconds", "time\n÷ ptb-mos", "MiB", "MiB\n÷ ptb-mos"),
        title="One training step of the paper's Penn Treebank models",
        caption=_caption(result, f"Forward, backward, clipping and update, float32. {units}"),
    )
    for m in result.measurements:
        table.add_row(
            m.name,
            f"{result.num_tokens[m.name]:,}",
            seconds(m.best),
            ratio(m.time_ratios.get("ptb-mos")),
            mib(m.peak_bytes),
            ratio(m.memory_ratios.get("ptb-mos")),
        )
    return table


def head_table(result: HeadBenchResult) -> Table:
    """As ratios to one softmax, one group of rows for each size."""
    units = _units(result.rounds, "head and inputs")
    table = make_table(
        ("E, V", "head"),
        ("multiplies", "time", "time\n÷ multiplies", "seconds", "MiB", "MiB ÷"),
        title=f"Heads, {result.num_tokens} tokens, as ratios to {CONTROL}",
        caption=_caption(
            result,
            f"Forward and backward, float32; mixtures have K = {result.num_components}. Multiplies "
            f"as torch's flop counter counts them, latent layers included. {units}",
        ),
    )
    for size in result.sizes:
        label = f"{size.embedding_size}, {size.vocab_size:,}"
        for m in size.measurements:
            taken, flops = m.time_ratios.get(CONTROL), size.flop_ratios[m.name]
            table.add_row(
                label,
                m.name,
                ratio(flops),
                ratio(taken),
                ratio(None if taken is None else taken / flops),
                seconds(m.best),
                mib(m.peak_bytes),
                ratio(m.memory_ratios.get(CONTROL)),
            )
            label = ""
    return table


def evaluation_table(result: EvaluationBenchResult) -> Table:
    """One group of rows per comparison; the first row of each is what the others are divided by."""
    units = _units(result.rounds, "model, tokens and gradient statistics")
    table = make_table(
        ("variant",),
        ("tokens", "seconds", "time ÷\nfirst row", "meant to be\nat most", "MiB"),
        title="What dynamic evaluation and the cache cost",
        caption=_caption(result, f"Segments of {result.segment} tokens. {units}"),
    )
    for comparison in result.comparisons:
        for index, m in enumerate(comparison.measurements):
            table.add_row(
                m.name,
                f"{comparison.num_tokens:,}",
                seconds(m.best),
                ratio(m.time_ratios.get(comparison.baseline)),
                f"{comparison.max_ratio:g}" if index == 1 else "",
                mib(m.peak_bytes),
            )
        table.add_section()
    return table


def sharded_table(result: ShardedBenchResult) -> Table:
    """As ratios to one process that has as many threads as each of the two."""
    forward, backward = (f"{result.sent[name]:,.0f}" for name in ("forward", "backward"))
    table = make_table(
        ("variant",),
        ("seconds", "time ÷\none process"),
        title=f"The loss of a sharded vocabulary: {shape_text(result.shape)}",
        caption=_caption(
            result,
            f"One forward and backward pass, float32. Seconds: {_best_of(result.rounds)}. Of two "
            "processes each has half of the vocabulary. Threads of a process, but where it has "
            f"all: {result.num_threads}.",
            f"Bytes a token that each hands to all-reduces: {forward} in the forward pass, "
            f"{backward} in the backward pass.",
        ),
    )
    for m in result.measurements:
        table.add_row(m.name, seconds(m.best), ratio(m.time_ratios.get(ONE)))
    return table


def audit_table(result: AuditBenchResult) -> Table:
    """As ratios to the SVD."""
    table = make_table(
        ("variant",),
        ("seconds", "time\n÷ svd", "MiB", "error\n÷ σ_max", "error\n÷ σ", "floor\n÷ σ_max"),
        title=f"Singular values of log-probabilities: {_size_text(result.size)}",
        caption=_caption(
            result,
            f"{_units(result.rounds, 'the inputs')} Seconds include making the log-probabilities "
            "in float64; alone they are the last row. error: the largest difference from the svd, "
            "as a fraction of the largest singular value, and of each one above float32's "
            "round-off. floor: singular values below it are unknown to the method.",
            f"linear: another matrix, of one softmax with E = {result.size.embedding_size}, so "
            "that its time is no ratio of the same work; its error is from "
            f"{_size_text(LINEAR_CHECK)}.",
            *_notes(result.measurements),
        ),
    )
    for m in result.measurements:
        error, time = result.errors.get(m.name), m.time_ratios.get("svd")
        errors = (None,) * 3 if error is None else (error.absolute, error.relative, error.floor)
        table.add_row(
            m.name,
            seconds(m.best),
            f"{time:.2g}" if time is not None and time < 0.1 else ratio(time),
            mib(m.peak_bytes),
            *("–" if value is None else f"{value:.0e}" if value else "0" for value in errors),
        )
    return table


def huggingface_table(result: HuggingFaceBenchResult) -> Table:
    """Step time and memory; the memory of a head is what it adds to the body's."""
    size = result.size
    dense = (
        ""
        if result.dense_ratio is None
        else (
            f" The head with dense logits needs {result.dense_ratio:.1f} times the memory of ours."
        )
    )
    table = make_table(
        ("variant",),
        ("seconds", "time\n÷ body", "MiB\nof the step", "MiB\nof the head", "time\n÷ ours"),
        title=f"A training step of a GPT-2 with {size.num_layers} blocks",
        caption=(
            f"Forward and backward of {size.num_tokens} tokens, float32, D = {size.hidden_size}, "
            f"V = {size.vocab_size:,}, mixtures with K = {result.num_components}. Seconds: the "
            f"best of {len(result.measurements[0].times)} rounds. MiB: peak memory beyond model "
            f"and inputs; of the head: beyond that of the body alone.{dense}\n"
            + environment_text(result.environment)
        ),
    )
    for m in result.measurements:
        table.add_row(
            m.name,
            seconds(m.best) if m.failure is None else m.failure,
            ratio(m.time_ratios.get(BODY)),
            mib(m.peak_bytes),
            mib(result.head_bytes.get(m.name)),
            ratio(m.time_ratios.get(OURS)),
        )
    return table


def loss_cells(measurement: Measurement) -> tuple[str, ...]:
    """The name, and the cells of `LOSS_COLUMNS`."""
    times, peaks = measurement.time_ratios, measurement.memory_ratios
    return (
        measurement.name,
        ratio(times.get("matmul")),
        ratio(times.get("fused")),
        seconds(measurement.best),
        mib(measurement.peak_bytes),
        ratio(peaks.get("fused")),
    )


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def shape_text(shape: Shape) -> str:
    return (
        f"N = {shape.num_tokens:,} tokens, K = {shape.num_components} components, "
        f"E = {shape.embedding_size}, V = {shape.vocab_size:,}"
    )


def _size_text(size: Size) -> str:
    return f"{size.num_contexts:,} contexts × {size.vocab_size:,} tokens"


def noise_text(part: ShapeResult) -> str:
    """A warning if an implementation took less time than the lower bound; else empty."""
    ratios = {m.name: m.time_ratios.get("matmul", 1.0) for m in part.measurements}
    below = [name for name in IMPLEMENTATIONS if ratios.get(name, 1.0) < 1]
    if not below:
        return ""
    return (
        f"At {part.shape.name}, {listed(below)} measured below the matmul lower bound, which is "
        "measured, too: the times of this run are no more accurate than that."
    )


def growth_text(result: LossBenchResult) -> str:
    """How the memory of `fused` grows with the vocabulary, and what is allowed."""
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


def _best_of(rounds: int) -> str:
    return "once" if rounds == 1 else f"best of {rounds} alternating rounds"


def _units(rounds: int, inputs: str) -> str:
    return f"Seconds: {_best_of(rounds)}. MiB: peak memory above {inputs}, in a fresh process."


def _notes(measurements: Iterable[Measurement]) -> list[str]:
    notes = {m.name: joined((m.note, m.failure)) for m in measurements}
    return [f"{name}: {note}." for name, note in notes.items() if note]


def _caption(result: BenchResult, *lines: str) -> str:
    where = f"{environment_text(result.environment)}, {duration(result.elapsed)}."
    return "\n".join((*lines, where))
