"""How near trained networks come to an exact language, as the terminal shows it."""

import math

from rich import box
from rich.table import Table

from highrank.experiments.learned_language import LearnedLanguageResult

COSTS = ("parameters", "tokens\nread", "seconds")


def learned_language_table(result: LearnedLanguageResult) -> Table:
    table = Table(
        title="AWD-LSTMs on the text of an exact language",
        caption=(
            f"Perplexities on the test text. The language: V = {result.vocab_size}, "
            f"{result.num_contexts} contexts, log P* of rank {result.rank}, perplexity "
            f"{result.floor:.3f} on this text. Heads see E = {result.context_size} numbers; "
            f"{result.num_tokens:,} tokens of training text, {_length(result)}. Grown: one "
            "component for the first part of the run, then K. Parted: what the speaking component "
            "tells about the word, in nats, at the start of valid. Optimum: the same head with a "
            "free vector for every context, fitted to the language itself."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("head", "K", "perplexity", "above\nthe floor", "optimum", "parted", *COSTS):
        table.add_column(name, justify="left" if name == "head" else "right", no_wrap=True)
    for head in result.heads:
        table.add_row(
            head.head if head.grow_at is None else f"{head.head} at {head.grow_at:.0%}",
            str(head.num_components),
            f"{head.perplexity:.3f}",
            _percent(head.excess),
            _percent(head.optimum),
            "–" if head.specialisation is None else f"{head.specialisation:.2f}",
            f"{head.num_parameters:,}",
            f"{head.num_tokens:,}",
            f"{head.seconds:.0f}",
        )
    return table


def _length(result: LearnedLanguageResult) -> str:
    if result.budget is None:
        return f"{result.epochs} epochs"
    return f"{result.budget:.0f} seconds for each head"


def _percent(nats: float) -> str:
    return f"{math.expm1(nats):+.2%}"
