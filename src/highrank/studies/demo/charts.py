"""The four charts of the demo, per language."""

from highrank.report.figure import Axis, Bars, Lines, Mark, Series
from highrank.report.theme import HEAD_NAMES, HEAD_STYLES, TRUTH
from highrank.studies.demo.measure import Fit, LanguageResult

# Less than this is not worth the space: 10⁻⁵ nats are a perplexity 0.001 % higher, and singular
# values of log-probabilities are in the hundreds, or are zero up to float64's noise.
EXCESS = Axis(label="excess, nats per token", is_log=True, floor=1e-5)
SINGULAR_VALUE = Axis(label="singular value", is_log=True, floor=1e-3)

TITLES = {"factorised": "A factorised language", "senses": "A language of senses"}


def size_chart(language: LanguageResult, title: str = "") -> Lines:
    """Excess against d; where one softmax suffices is marked."""
    fits = [fit for fit in language.fits if fit.matches is None]
    sizes = sorted({fit.context_size for fit in fits})
    marks: tuple[Mark, ...] = ()
    if language.name == "factorised":
        # By construction: log P* is a product of vectors of r - 1 numbers, less a normaliser.
        marks = (Mark(x=language.rank - 1, label="d = r − 1: one softmax suffices"),)
    return Lines(
        series=tuple(
            _excess(head, [(fit.context_size, fit) for fit in fits if fit.head == head])
            for head in _heads(fits)
        ),
        x=Axis(label="size d of the vector that meets the words", ticks=tuple(sizes)),
        y=EXCESS,
        marks=marks,
        title=title,
    )


def parameter_chart(language: LanguageResult) -> Lines:
    """Excess against the number of parameters, the matched softmaxes included."""
    return Lines(
        series=tuple(
            _excess(head, [(fit.num_parameters, fit) for fit in language.fits if fit.head == head])
            for head in _heads(language.fits)
        ),
        x=Axis(label="parameters", is_log=True),
        y=EXCESS,
    )


def spectrum_chart(language: LanguageResult, fits: list[Fit]) -> Lines:
    """Singular values of log P* and of what each head made of it, all heads at the same d."""
    spectra = [("Truth", TRUTH, language.singular_values)]
    spectra += [(HEAD_NAMES[f.head], HEAD_STYLES[f.head], f.singular_values) for f in fits]
    bound = next((fit.rank_bound for fit in fits if fit.rank_bound is not None), None)
    marks = () if bound is None else (Mark(x=bound, label=f"one softmax: rank ≤ {bound}"),)
    return Lines(
        series=tuple(
            Series(label=label, x=range(1, len(values) + 1), y=values, style=style)
            for label, style, values in spectra
        ),
        x=Axis(label="index, the largest first"),
        y=SINGULAR_VALUE,
        marks=marks,
    )


def example_chart(language: LanguageResult, fits: list[Fit]) -> Bars:
    """The likeliest words of one context: the true probability, and what each head says."""
    positions = range(len(language.example_words))
    return Bars(
        categories=tuple(str(word) for word in language.example_words),
        series=tuple(
            Series(label=label, x=positions, y=values, style=style)
            for label, style, values in (
                ("Truth", TRUTH, language.example),
                *((HEAD_NAMES[f.head], HEAD_STYLES[f.head], f.example) for f in fits),
            )
        ),
        x=Axis(label="word"),
        y=Axis(label="probability"),
    )


def _heads(fits: list[Fit] | tuple[Fit, ...]) -> list[str]:
    present = {fit.head for fit in fits}
    return [head for head in HEAD_NAMES if head in present]


def _excess(head: str, points: list[tuple[int, Fit]]) -> Series:
    points = sorted(points, key=lambda point: point[0])
    return Series(
        label=HEAD_NAMES[head],
        x=[x for x, _ in points],
        y=[fit.excess for _, fit in points],
        style=HEAD_STYLES[head],
    )
