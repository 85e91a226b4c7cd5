"""The page of `highrank demo`: what one softmax cannot say, and what a mixture can.

d is the size of the vector that meets the words, K the number of components, r the rank of log P*.
"""

import math
from pathlib import Path

from highrank import __version__
from highrank.experiments.demo_result import DemoResult, Fit, LanguageResult
from highrank.reports import demo_text
from highrank.reports.charts import Lines, draw, save_png, to_svg
from highrank.reports.demo_charts import (
    TITLES,
    example_chart,
    parameter_chart,
    size_chart,
    spectrum_chart,
)
from highrank.reports.demo_verdict import (
    LEVEL,
    equal_parameters,
    equal_sizes,
    leader_names,
    leaders,
    listed,
    shown_size,
    verdict,
)
from highrank.reports.page import (
    Code,
    Column,
    Figure,
    Grid,
    Page,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.reports.tables import duration, fit_cells, nats, ordered_fits
from highrank.reports.theme import HEAD_NAMES


def demo_page(result: DemoResult) -> Page:
    """What was measured, explained to someone who has not read the paper."""
    size = shown_size(result)
    return Page(
        title=demo_text.TITLE,
        lead=demo_text.LEAD,
        sections=(
            Section("The bottleneck", (_text(demo_text.BOTTLENECK), _text(demo_text.MIXTURES))),
            Section("At a glance", (_summary(result, size),)),
            *(_language_section(language, size) for language in result.languages),
            Section("How this page was made", _method(result)),
        ),
        footer=f"highrank {__version__} · seed {result.seed} · {duration(result.elapsed)}",
    )


def demo_picture(result: DemoResult, path: Path) -> None:
    """Write a PNG of 1200 × 500 pixels: excess against d, one panel per language."""
    charts = [size_chart(language, TITLES[language.name]) for language in result.languages]
    size = (8 / len(charts), 10 / 3)
    save_png(draw(*charts, size=size, margin=0.1), path, dpi=150)


def _summary(result: DemoResult, size: int) -> Table:
    rows = []
    for language in result.languages:
        rows.append(_summary_row(f"{language.name}, equal d", equal_sizes(language)[size]))
        if fits := equal_parameters(language).get(size):
            rows.append(_summary_row(f"{language.name}, equal parameters", fits))
    return Table(
        title=f"Excess at d = {size}, in nats per token",
        caption=(f"Lower is better. At equal parameters the softmax has a larger d. {LEVEL}"),
        columns=(
            Column("Language", False),
            *map(Column, HEAD_NAMES.values()),
            Column("Lowest", False),
        ),
        rows=tuple(rows),
    )


def _summary_row(name: str, fits: list[Fit]) -> tuple[str, ...]:
    excess = {fit.head: nats(fit.excess) for fit in fits}
    return name, *(excess.get(head, "–") for head in HEAD_NAMES), leader_names(fits)


def _language_section(language: LanguageResult, size: int) -> Section:
    description = demo_text.DESCRIPTIONS[language.name].format(
        rank=language.rank,
        before=language.rank - 1,
        most=min(language.vocab_size, language.num_contexts),
    )
    facts = (
        f" {language.num_contexts} contexts, {language.vocab_size} words; entropy "
        f"{language.entropy:.3f} nats per token, a perplexity of {math.exp(language.entropy):.1f}."
    )
    return Section(
        TITLES[language.name],
        (
            _text(description + facts),
            *_findings(language),
            Grid(_figures(language, equal_sizes(language)[size], size)),
            _fit_table(language),
        ),
    )


def _findings(language: LanguageResult) -> list[Paragraph]:
    findings = [Paragraph((Strong("Equal d. "), verdict(equal_sizes(language))))]
    if groups := equal_parameters(language):
        sizes = [fit.context_size for fits in groups.values() for fit in fits if fit.matches]
        room = (
            f"The mixtures of d = {listed(groups)} meet softmaxes as large as they are, "
            f"of d = {listed(sizes)}. "
        )
        winners = verdict(groups, "where the mixtures have d")
        findings.append(Paragraph((Strong("Equal parameters. "), room, winners)))
    return findings


def _figures(language: LanguageResult, fits: list[Fit], size: int) -> tuple[Figure, ...]:
    by_size, by_parameters = size_chart(language), parameter_chart(language)
    ranks = [f"{language.rank} (truth)", *(f"{f.rank} ({HEAD_NAMES[f.head]})" for f in fits)]
    rank_text = f"The numerical rank is {listed(ranks)}."
    return (
        Figure(
            svg=to_svg(draw(by_size)),
            title="Equal d",
            caption="Compare heads above the same d. Lower is better.",
            description=_described("Excess against d.", by_size),
        ),
        Figure(
            svg=to_svg(draw(by_parameters)),
            title="Equal parameters",
            caption="Compare heads above the same number of parameters; all trained numbers count.",
            description=_described("Excess against the number of parameters.", by_parameters),
        ),
        Figure(
            svg=to_svg(draw(spectrum_chart(language, fits))),
            title=f"The spectrum, at d = {size}",
            caption=f"Singular values of the matrix of log-probabilities. {rank_text}",
            description=f"Singular values in descending order, on a log scale. {rank_text}",
        ),
        Figure(
            svg=to_svg(draw(example_chart(language, fits))),
            title=f"One context, at d = {size}",
            caption=f"The likeliest words of context {language.example_context}, the one where "
            "this softmax is worst: bars are the truth, dots what each head says.",
            description=_example_described(language, fits),
        ),
    )


def _fit_table(language: LanguageResult) -> Table:
    fits = ordered_fits(language)
    best = [fit for group in equal_parameters(language).values() for fit in leaders(group)]
    names = ("d", "K", "Parameters", "Excess", "Rank", "Bound")
    return Table(
        title="All fits",
        caption=(
            "Excess in nats per token. Rank: numerical, of the matrix of log-probabilities, in "
            "float64; bound: the highest that the head allows, – where none is known. Matched: a "
            "softmax as large as the mixtures above it. Highlighted: the lowest excess at equal "
            "parameters."
        ),
        columns=(Column("Head", False), *map(Column, names)),
        rows=tuple(map(fit_cells, fits)),
        highlighted=frozenset(index for index, fit in enumerate(fits) if fit in best),
    )


def _method(result: DemoResult) -> tuple[Paragraph, ...]:
    return (
        _text(demo_text.METHOD),
        Paragraph(
            (
                f"The run took {duration(result.elapsed)} with seed {result.seed}; ",
                Code(f"highrank demo --seed {result.seed + 1}"),
                " repeats it with other languages and other starting points.",
                *(demo_text.QUICK if result.quick else ()),
                demo_text.LIMITS,
            )
        ),
        demo_text.REFERENCE,
    )


def _text(text: str) -> Paragraph:
    return Paragraph((text,))


def _described(opening: str, chart: Lines) -> str:
    lines = []
    for series in chart.series:
        points = (f"{nats(y)} at {x:,}" for x, y in zip(series.x, series.y, strict=True))
        lines.append(f"{series.label}: {', '.join(points)}.")
    return " ".join((opening, *lines))


def _example_described(language: LanguageResult, fits: list[Fit]) -> str:
    words = []
    for index, word in enumerate(language.example_words):
        heads = (f"{HEAD_NAMES[fit.head]} {fit.example[index]:.3f}" for fit in fits)
        words.append(f"Word {word}: {language.example[index]:.3f}, {', '.join(heads)}.")
    return " ".join(("True probability, and what each head says.", *words))
