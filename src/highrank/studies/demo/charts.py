"""The four charts of the demo, per language."""

from collections.abc import Callable, Iterable, Sequence

from highrank.report.figure import Axis, Bars, Chart, Lines, Mark, Series
from highrank.report.theme import HEAD_NAMES, HEAD_STYLES, TRUTH
from highrank.studies.demo.measure import Fit, LanguageResult

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
