"""Terminal tables, and the order and wording of rows that the pages share."""

from rich import box
from rich.table import Table

from highrank.experiments.demo_result import DemoResult, Fit, LanguageResult
from highrank.reports.theme import HEAD_NAMES


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


def nats(value: float) -> str:
    """Four decimals; two digits and a power of ten below 0.001."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}".replace("e-0", "e-")


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
