"""How benchmarks of whole models are shown: as tables in the terminal."""

from rich.table import Table

from highrank.report.formats import environment_text, make_table, mib, ratio
from highrank.studies.bench.huggingface import BODY, OURS, HuggingFaceBenchResult
from highrank.studies.bench.page import seconds


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
