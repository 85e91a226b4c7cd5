"""How near trained networks come to an exact language, as the terminal shows it."""

import math

from rich import box
from rich.table import Table

from highrank.experiments.learned_language import LearnedLanguageResult


def learned_language_table(result: LearnedLanguageResult) -> Table:
    table = Table(
        title="AWD-LSTMs on the text of an exact language",
        caption=(
            f"Perplexities on the test text. The language: V = {result.vocab_size}, "
            f"{result.num_contexts} contexts, log P* of rank {result.rank}, perplexity "
            f"{result.floor:.3f} on this text. Heads see E = {result.context_size} numbers; "
            f"{result.num_tokens:,} tokens of training text, {result.epochs} epochs. "
            "Optimum: the same head with a free vector for every context, fitted to the language "
            "itself."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("head", "K", "parameters", "perplexity", "above\nthe floor", "optimum", "seconds"):
        table.add_column(name, justify="left" if name == "head" else "right", no_wrap=True)
    for head in result.heads:
        table.add_row(
            head.head,
            str(head.num_components),
            f"{head.num_parameters:,}",
            f"{head.perplexity:.3f}",
            _percent(head.excess),
            _percent(head.optimum),
            f"{head.seconds:.0f}",
        )
    return table


def _percent(nats: float) -> str:
    return f"{math.expm1(nats):+.2%}"
