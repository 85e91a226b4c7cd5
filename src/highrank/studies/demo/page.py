"""The page of `highrank demo`: what one softmax cannot say, and what a mixture can.

d is the size of the vector that meets the words, K the number of components, r the rank of log P*.

The words of the demo's page: nothing in them depends on who wins.

d is the size of the vector that meets the words, K the number of components.
"""

import math
from pathlib import Path

from highrank import __version__
from highrank.report.figure import Lines, draw, save_png, to_svg
from highrank.report.formats import duration, listed, nats
from highrank.report.page import (
    Code,
    Column,
    Figure,
    Grid,
    Link,
    Page,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.report.theme import HEAD_NAMES
from highrank.studies.demo.charts import (
    TITLES,
    example_chart,
    parameter_chart,
    size_chart,
    spectrum_chart,
)
from highrank.studies.demo.measure import DemoResult, Fit, LanguageResult
from highrank.studies.demo.table import fit_cells, ordered_fits
from highrank.studies.demo.verdict import (
    LEVEL,
    equal_parameters,
    equal_sizes,
    leader_names,
    leaders,
    shown_size,
    verdict,
)


def demo_page(result: DemoResult) -> Page:
    """What was measured, explained to someone who has not read the paper."""
    size = shown_size(result)
    return Page(
        title=TITLE,
        lead=LEAD,
        sections=(
            Section("The bottleneck", (_text(BOTTLENECK), _text(MIXTURES))),
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
    description = DESCRIPTIONS[language.name].format(
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
        _text(METHOD),
        Paragraph(
            (
                f"The run took {duration(result.elapsed)} with seed {result.seed}; ",
                Code(f"highrank demo --seed {result.seed + 1}"),
                " repeats it with other languages and other starting points.",
                *(QUICK if result.quick else ()),
                LIMITS,
            )
        ),
        REFERENCE,
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


TITLE = "What one softmax cannot say"
LEAD = (
    "Three output layers meet two small languages whose every probability is known: what the "
    "softmax bottleneck costs, what a mixture of softmaxes wins, and when a larger softmax would "
    "have done."
)
BOTTLENECK = (
    "Take a sheet with one row for every context and one column for every word, and write into "
    "each cell the logarithm of the probability that this word comes next. This matrix is the "
    "language. The last layer of a language model fills it in from d numbers per context: each "
    "cell is the product of the context’s vector with the word’s vector, plus a bias of the word, "
    "minus a normaliser of the context. Such a matrix has rank at most d + 2, whatever the network "
    "before it has understood: d from the product, one from the bias, one from the normaliser. If "
    "the language has a higher rank, no training and no amount of text makes the model exact. "
    "That is the softmax bottleneck. What it costs is measured here as excess: by how much the "
    "model’s cross-entropy lies above the language’s own entropy, which no model can go below. An "
    "excess of 0.1 nats per token is a perplexity 11 % above the best possible."
)
MIXTURES = (
    "A mixture of softmaxes (MoS) gives each context K vectors and K weights, makes a distribution "
    "of each vector, and averages the probabilities. The logarithm of a sum is not a sum of "
    "logarithms, so the bound d + 2 does not hold. A mixture of contexts (MoC) has the same "
    "parameters, but averages the K vectors before a single softmax: the average is one vector of "
    "d numbers, and the bound is back. MoC is the control: what it gains over a softmax, the added "
    "parameters have gained. At the same d a mixture is several times as large as a softmax, so "
    "there are two fair questions, and they may have different answers: which head is better at "
    "equal d, and which at equal parameters, where the softmax can afford a larger d."
)
DESCRIPTIONS = {
    "factorised": (
        "Its logits are products of vectors of {before} numbers, so that log P* has rank {rank} by "
        "construction: a softmax with d = {before} says it exactly, and no smaller one does. "
        "It is the bottleneck in its purest form, and it suits a larger softmax: from d = {before} "
        "on, one is all that is needed."
    ),
    "senses": (
        "Each context blends a few sharp distributions out of many, as a word of several meanings "
        "blends what may follow each of them. Here the probabilities are sums, not their "
        "logarithms: log P* has rank {rank}, and {most} is the most that its size allows. It "
        "suits a mixture as the other language suits a softmax: three softmaxes with d = 8 say it "
        "exactly."
    ),
}
METHOD = (
    "Both languages are tables of probabilities, so the cross-entropy is computed over all "
    "contexts and words, each weighted by how often it occurs: no text is sampled, and no number "
    "on this page has sampling noise. Each context has free vectors of its own, as the best "
    "imaginable network would provide, so that only the last layer is left to fail. An excess is "
    "what the optimiser reached; the best that a head can do may be lower."
)
LIMITS = (
    " The languages show a mechanism, not its weight in natural language, whose true distribution "
    "nobody knows."
)
QUICK = (" This was a quick run; without ", Code("--quick"), " it is more thorough.")
REFERENCE = Paragraph(
    (
        "The argument is that of Yang, Dai, Salakhutdinov and Cohen, “Breaking the Softmax "
        "Bottleneck: A High-Rank RNN Language Model”, ICLR 2018, ",
        Link("arXiv 1711.03953", "https://arxiv.org/abs/1711.03953"),
        ".",
    )
)
