"""The page, the charts and the terminal table of the demo."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from highrank import __version__
from highrank.heads import head_class
from highrank.report.figure import (
    DASHED,
    TRUTH,
    Axis,
    Bars,
    Chart,
    Lines,
    Mark,
    Series,
    describe,
    draw,
    line_style,
    save_png,
    to_svg,
)
from highrank.report.formats import duration, listed, make_table, nats
from highrank.report.page import Column, Figure, Table, render
from highrank.studies.demo.measure import CLOSE_UP, DemoResult, Fit, LanguageResult

# A softmax and a MoC often coincide: small dashes and squares on a broad line leave both visible.
HEAD_STYLES = {
    "softmax": line_style("series-1", marker="o", linewidth=4.0, markersize=9.0),
    "moc": line_style("series-2", marker="s", linewidth=1.6, markersize=5.0, linestyle=DASHED),
    "mos": line_style("series-3", marker="D", markersize=6.5),
}
HEAD_NAMES = {kind: head_class(kind).title for kind in HEAD_STYLES}
# 10⁻⁵ nats are a perplexity 0.001 % higher. Singular values of log-probabilities are in the
# hundreds, or are zero up to float64's noise.
EXCESS = Axis(label="excess, nats per token", is_log=True, floor=1e-5)
SINGULAR_VALUE = Axis(label="singular value", is_log=True, floor=1e-3)


def language_charts(language: LanguageResult, fits: Sequence[Fit]) -> dict[str, Chart]:
    """By the names that the page's template uses; `fits` are looked at closely."""
    return {
        "size": size_chart(language),
        "parameters": _parameter_chart(language),
        "spectrum": _spectrum_chart(language, fits),
        "example": _example_chart(language, fits),
    }


def size_chart(language: LanguageResult, title: str = "") -> Lines:
    """Excess against d; where one softmax suffices is marked."""
    fits = [fit for fit in language.fits if fit.matches is None]
    sizes = sorted({fit.context_size for fit in fits})
    # log P* of the factorised language is a product of vectors of r - 1 numbers, normalised.
    suffices = Mark(x=language.rank - 1, label="d = r − 1: one softmax suffices")
    return Lines(
        series=_excess(fits, lambda fit: fit.context_size),
        x=Axis(label="context size d", ticks=tuple(sizes)),
        y=EXCESS,
        marks=(suffices,) if language.name == "factorised" else (),
        title=title,
    )


def _parameter_chart(language: LanguageResult) -> Lines:
    """Excess against the number of parameters, the matched softmaxes included."""
    series = _excess(language.fits, lambda fit: fit.num_parameters)
    return Lines(series=series, x=Axis(label="parameters", is_log=True), y=EXCESS)


def _spectrum_chart(language: LanguageResult, fits: Sequence[Fit]) -> Lines:
    """Singular values of log P* and of each head's log-probabilities, all heads at the same d."""
    bound = next(fit.rank_bound for fit in fits if fit.rank_bound is not None)
    return Lines(
        series=_beside_truth(language.singular_values, fits, lambda fit: fit.singular_values, 1),
        x=Axis(label="index, the largest first"),
        y=SINGULAR_VALUE,
        marks=(Mark(x=bound, label=f"one softmax: rank ≤ {bound}"),),
    )


def _example_chart(language: LanguageResult, fits: Sequence[Fit]) -> Bars:
    """The most probable tokens of one context: true probabilities and those of each head."""
    return Bars(
        categories=tuple(map(str, language.example_tokens)),
        series=_beside_truth(language.example, fits, lambda fit: fit.example, 0),
        x=Axis(label="token"),
        y=Axis(label="probability"),
    )


def _excess(fits: Iterable[Fit], size: Callable[[Fit], int]) -> tuple[Series, ...]:
    fits = sorted(fits, key=size)
    return tuple(
        Series(
            label=name,
            x=[size(fit) for fit in fits if fit.head == head],
            y=[fit.excess for fit in fits if fit.head == head],
            style=HEAD_STYLES[head],
        )
        for head, name in HEAD_NAMES.items()
    )


def _beside_truth(
    truth: Sequence[float],
    fits: Iterable[Fit],
    values: Callable[[Fit], Sequence[float]],
    first: int,
) -> tuple[Series, ...]:
    """Values of the truth and of each head, against their index, which counts from `first`."""
    x = range(first, first + len(truth))
    heads = (
        Series(label=HEAD_NAMES[fit.head], x=x, y=values(fit), style=HEAD_STYLES[fit.head])
        for fit in fits
    )
    return Series(label="Truth", x=x, y=truth, style=TRUTH), *heads


TITLES = {"factorised": "The factorised language", "senses": "The language of senses"}
# Fits this close to the lowest excess share it.
RELATIVE, ABSOLUTE = 0.01, 1e-5
FIT_COLUMNS = ("d", "K", "parameters", "excess", "rank", "bound")
FIT_CAPTION = (
    "Rank: numerical rank of the log-probability matrix (float64). Bound: the highest rank that "
    "the head allows, – where none is known. Matched: a softmax with as many parameters as the "
    "mixtures above it."
)


def demo_page(result: DemoResult) -> str:
    """The page as HTML."""
    return render(
        "studies/demo/page.html.j2",
        title="What one softmax cannot express",
        verdict=headline(result),
        answer=answer(result),
        footer=f"highrank {__version__} · seed {result.seed}, {duration(result.elapsed)}",
        result=result,
        size=CLOSE_UP,
        fit_caption=FIT_CAPTION,
        summary=_summary(result),
        languages=[_language(language) for language in result.languages],
    )


def demo_picture(result: DemoResult, path: Path) -> None:
    """Write a PNG of 1200 pixels' width: excess against d, one panel per language."""
    charts = [size_chart(language, TITLES[language.name]) for language in result.languages]
    title = "What one softmax cannot express: two exact languages"
    save_png(draw(*charts, size=(8 / len(charts), 3.7), margin=0.1, title=title), path, dpi=150)


def demo_table(result: DemoResult) -> RichTable:
    """All fits: one group of rows per language, 80 columns wide at most."""
    table = make_table(
        ("language", "head"),
        FIT_COLUMNS,
        title="Excess cross-entropy over the language's entropy, in nats per token",
        caption=f"{FIT_CAPTION} Nothing is sampled. "
        f"Seed {result.seed}, {duration(result.elapsed)}.",
    )
    for language in result.languages:
        for index, fit in enumerate(language.fits):
            table.add_row(language.name if index == 0 else "", *_fit_cells(fit))
        table.add_section()
    return table


def comparisons(language: LanguageResult) -> dict[str, dict[int, list[Fit]]]:
    """Fits to be compared with each other, under the d of the mixtures among them."""
    by_size: dict[int, list[Fit]] = {}
    matched: dict[int, list[Fit]] = {}
    for fit in language.fits:
        if fit.matches is None:
            by_size.setdefault(fit.context_size, []).append(fit)
        else:
            mixtures = (other for other in by_size[fit.matches] if other.num_components > 1)
            matched[fit.matches] = [*mixtures, fit]
    return {"equal d": by_size, "equal parameters": matched}


def leaders(fits: list[Fit]) -> list[Fit]:
    """The fit with the lowest excess, and those level with it."""
    limit = min(fit.excess for fit in fits) * (1 + RELATIVE) + ABSOLUTE
    return [fit for fit in fits if fit.excess <= limit]


def leader_names(fits: list[Fit]) -> str:
    heads = {fit.head for fit in leaders(fits)}
    return listed(name for head, name in HEAD_NAMES.items() if head in heads)


def verdict(groups: Mapping[Any, list[Fit]], where: str, everywhere: str) -> str:
    """Such as "Softmax has the lowest excess at d = 63, and MoS has the lowest excess at d = 8".

    Args:
        groups: what is compared, by its place.
        where: what stands before places, such as "at d =".
        everywhere: stands for all places.
    """
    places: dict[str, list[Any]] = {}
    for place, fits in groups.items():
        places.setdefault(leader_names(fits), []).append(place)
    return ", and ".join(
        f"{names} {'share' if ' and ' in names else 'has'} the lowest excess "
        + (everywhere if len(places) == 1 else f"{where} {listed(some)}")
        for names, some in places.items()
    )


def headline(result: DemoResult) -> str:
    """The heads with the lowest excess at equal parameters, in at most twelve words."""
    found = {
        language.name: leader_names(fits)
        for language in result.languages
        if (fits := comparisons(language)["equal parameters"].get(CLOSE_UP))
    }
    if len(set(found.values())) == 1:
        return f"{next(iter(found.values()))}: best at equal parameters, whatever the language."
    parts = ", ".join(f"{names} ({language})" for language, names in found.items())
    return f"Best at equal parameters: {parts}." if found else ""


def answer(result: DemoResult) -> str:
    """The sentence that follows the headline of the page."""
    clauses = []
    places = (f"With d = {CLOSE_UP} numbers per context", "at equal parameters")
    for place, kind in zip(places, ("equal d", "equal parameters"), strict=True):
        groups = {
            TITLES[language.name].replace("The", "the"): fits
            for language in result.languages
            if (fits := comparisons(language)[kind].get(CLOSE_UP))
        }
        if groups:
            clauses.append(f"{place}, {verdict(groups, 'on', 'on both languages')}")
    return "; ".join(clauses) + "."


def _summary(result: DemoResult) -> Table:
    rows = []
    for language in result.languages:
        for kind, groups in comparisons(language).items():
            if fits := groups.get(CLOSE_UP):
                excess = {fit.head: nats(fit.excess) for fit in fits}
                cells = (excess[head] for head in HEAD_NAMES)
                rows.append((f"{language.name}, {kind}", *cells, leader_names(fits)))
    names = (Column("language", False), *map(Column, HEAD_NAMES.values()), Column("lowest", False))
    return Table(columns=names, rows=tuple(rows))


def _language(language: LanguageResult) -> dict[str, Any]:
    """Values of one language for the template."""
    by_size, matched = comparisons(language).values()
    fits = by_size[CLOSE_UP]
    return {
        "language": language,
        "title": TITLES[language.name],
        "equal_sizes": verdict(by_size, "at d =", "at every d"),
        "matched": matched,
        "equal_parameters": verdict(matched, "where the mixtures have d =", "at every size"),
        "ranks": listed(f"{fit.rank} ({HEAD_NAMES[fit.head]})" for fit in fits),
        "figures": {
            name: Figure(svg=to_svg(draw(chart)), description=describe(chart))
            for name, chart in language_charts(language, fits).items()
        },
        "fits": _fit_table(language, best=[fit for x in matched.values() for fit in leaders(x)]),
    }


def _fit_table(language: LanguageResult, best: list[Fit]) -> Table:
    return Table(
        columns=(Column("head", False), *map(Column, FIT_COLUMNS)),
        rows=tuple(map(_fit_cells, language.fits)),
        highlighted=frozenset(index for index, fit in enumerate(language.fits) if fit in best),
    )


def _fit_cells(fit: Fit) -> tuple[str, ...]:
    return (
        HEAD_NAMES[fit.head] + ("" if fit.matches is None else ", matched"),
        str(fit.context_size),
        str(fit.num_components),
        f"{fit.num_parameters:,}",
        nats(fit.excess),
        str(fit.rank),
        "–" if fit.rank_bound is None else str(fit.rank_bound),
    )
