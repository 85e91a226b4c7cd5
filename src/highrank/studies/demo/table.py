"""Terminal tables, and the order and wording of rows that the pages share.

How near trained networks come to an exact language, as the terminal shows it.
"""

import math

from rich import box
from rich.table import Table

from highrank.report.formats import duration, nats
from highrank.report.theme import HEAD_NAMES
from highrank.studies.demo.learned import LearnedLanguageResult
from highrank.studies.demo.measure import DemoResult, Fit, LanguageResult


def demo_table(result: DemoResult) -> Table:
    """All fits of the demo: one group of rows per language, 80 columns wide at most."""
    table = Table(
        title="Excess cross-entropy over the language's entropy, in nats per token",
        caption=(
            "Exact: no sampling. rank: numerical rank of the log-probability matrix; "
            "bound: the highest that the head allows, – where none is known. "
            "matched: a softmax as large as the mixtures above it. "
            f"Seed {result.seed}, {duration(result.elapsed)}."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("language", no_wrap=True)
    table.add_column("head", no_wrap=True)
    for name in ("d", "K", "parameters", "excess", "rank", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for language in result.languages:
        for index, fit in enumerate(ordered_fits(language)):
            table.add_row(language.name if index == 0 else "", *fit_cells(fit))
        table.add_section()
    return table


def ordered_fits(language: LanguageResult) -> list[Fit]:
    """By d: softmax, MoC, MoS, then the softmax that matches these mixtures in parameters."""
    heads = list(HEAD_NAMES)

    def key(fit: Fit) -> tuple[int, bool, int]:
        size = fit.context_size if fit.matches is None else fit.matches
        return size, fit.matches is not None, heads.index(fit.head)

    return sorted(language.fits, key=key)


def fit_cells(fit: Fit) -> tuple[str, ...]:
    """Head, d, K, parameters, excess, rank, bound."""
    return (
        fit_name(fit),
        str(fit.context_size),
        str(fit.num_components),
        f"{fit.num_parameters:,}",
        nats(fit.excess),
        str(fit.rank),
        "–" if fit.rank_bound is None else str(fit.rank_bound),
    )


def fit_name(fit: Fit) -> str:
    return HEAD_NAMES[fit.head] + ("" if fit.matches is None else ", matched")


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
