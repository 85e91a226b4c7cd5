"""Pictures of an audit: spectra, growth of the rank, use and difference of components."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from highrank.analysis.components import ComponentReport
from highrank.analysis.rank import press_threshold
from highrank.report.figure import (
    DASHED,
    TRUTH,
    Axis,
    Bars,
    Lines,
    Mark,
    Series,
    Style,
    draw,
    line_style,
    save_png,
)
from highrank.report.formats import printable
from highrank.studies.audit.measure import AuditResult, ModelAudit
from highrank.studies.audit.table import short_names

FLOAT32_EPS = 2.0**-23
# Points of a curve: more cannot be seen.
MAX_POINTS = 300
LOWEST = 1e-9
STYLES = (
    line_style("series-1", marker="o", linewidth=3.2, markersize=8.0),
    line_style("series-3", marker="D"),
    line_style("series-2", marker="s", linewidth=1.6, linestyle=DASHED),
    line_style("series-4", marker="^"),
    line_style("series-5", marker="v", linestyle=DASHED),
    line_style("series-6", marker="X", linewidth=1.6),
)
# Between markers, which tell the curves of several models apart.
MARKER_SPACING = 0.25


def audit_picture(result: AuditResult, path: Path) -> None:
    """Write the spectra as a PNG, 1200 pixels wide."""
    names = short_names(result.models)
    texts = ", ".join(dict.fromkeys(printable(model.text.name) for model in result.models))
    title, chart = f"Log-probabilities on {texts}", spectra_chart(names, result.models)
    save_png(draw(chart, size=(8, 4.5), margin=0.1, title=title), path, dpi=150)


def spectra_chart(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """Singular values divided by the largest, with the bounds and float32's round-off."""
    labels = ("index, the largest first", "singular value ÷ the largest")
    bounds: dict[int, str] = {}
    for index, model in enumerate(models):
        if model.rank.bound is not None:
            bounds.setdefault(model.rank.bound, style_of(index)["color"])
    thresholds = {
        press_threshold(1.0, (m.rank.num_contexts, m.rank.num_tokens), FLOAT32_EPS) for m in models
    }
    return replace(
        _curves(names, models, relative_values, labels),
        marks=tuple(Mark(x, f"bound {x:,}", color) for x, color in sorted(bounds.items())),
        levels=tuple(sorted(thresholds)),
        level_label="round-off of float32",
    )


def residual_chart(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """The fraction of the sum of squares that is left without the first k singular values."""
    labels = ("first k singular values", "fraction that is left")
    return _curves(names, models, residual_values, labels)


def growth_chart(names: Sequence[str], models: Sequence[ModelAudit], key: str) -> Lines | None:
    """A measure of rank against the number of contexts; None if it is unknown for all."""
    series = []
    for index, (name, model) in enumerate(zip(names, models, strict=True)):
        points = [(at.num_contexts, at.measures[key]) for at in model.rank.growth]
        points = [(size, rank) for size, rank in points if rank]
        if points:
            xs, ys = zip(*points, strict=True)
            series.append(Series(label=name, x=xs, y=ys, style=style_of(index)))
    if not series:
        return None
    ranks = [y for line in series for y in line.y]
    contexts = [x for line in series for x in line.x]
    ends = (min(contexts), min(max(contexts), max(ranks)))
    if ends[0] < ends[1]:
        series.insert(0, Series(label="one per context", x=ends, y=ends, style=TRUTH))
    # No rank lies between two numbers.
    whole = tuple(range(int(min(ranks)), int(max(ranks)) + 1))
    return Lines(
        series=tuple(series),
        x=Axis(label="contexts", is_log=True),
        y=Axis(label="rank", is_log=True, ticks=whole if 1 < len(whole) < 7 else None),
    )


def use_chart(mixture: ComponentReport) -> Bars:
    """How much each component is used; the level is that of components that are used alike."""
    components = mixture.components
    return _bars(
        {
            "mean weight": [component.mean_weight for component in components],
            "largest in so many contexts": [c.largest_fraction for c in components],
        },
        "fraction",
        1 / len(components),
    )


def difference_chart(mixture: ComponentReport) -> Bars:
    """How far each component is from the others: on average, and from the nearest.

    The level is that of components without a token in common.
    """
    others = [
        [value for j, value in enumerate(row) if j != k]
        for k, row in enumerate(mixture.pair_divergence)
    ]
    return _bars(
        {
            "mean over the others": [sum(row) / len(row) for row in others],
            "the nearest": [min(row) for row in others],
        },
        "divergence, nats",
        math.log(2),
    )


def _bars(values: dict[str, list[float]], label: str, level: float) -> Bars:
    styles = (line_style("series-3"), line_style("series-1", marker="o"))
    total = len(next(iter(values.values())))
    return Bars(
        categories=tuple(str(k) for k in range(1, total + 1)),
        series=tuple(
            Series(label=name, x=range(total), y=ys, style=style)
            for (name, ys), style in zip(values.items(), styles, strict=True)
        ),
        x=Axis(label="component"),
        y=Axis(label=label),
        level=level,
    )


def style_of(index: int) -> Style:
    """How the model of this index is drawn in every chart; beyond six, dashes change."""
    turn, place = divmod(index, len(STYLES))
    style = STYLES[place]
    other = {"linestyle": "-" if "linestyle" in style else DASHED} if turn % 2 else {}
    return style | other


def relative_values(model: ModelAudit) -> list[float]:
    """σ ÷ σ_max; zero for what is below the noise floor, and at the end if values are left out."""
    rank = model.rank
    values = [
        value / rank.largest if value > rank.noise_floor else 0.0 for value in rank.singular_values
    ]
    has_more = len(values) < min(rank.num_contexts, rank.num_tokens)
    return [*values, 0.0] if has_more else values


def residual_values(model: ModelAudit) -> list[float]:
    """Σ_{i>k} σ² ÷ Σ σ² for k = 1, 2, …; the last is 0."""
    squares = [value**2 for value in reversed(model.rank.singular_values)]
    tails = list(accumulate(squares))[::-1]
    return [*(tail / tails[0] for tail in tails[1:]), 0.0]


def _curves(
    names: Sequence[str],
    models: Sequence[ModelAudit],
    values_of: Callable[[ModelAudit], list[float]],
    labels: tuple[str, str],
) -> Lines:
    series = []
    for index, (name, model) in enumerate(zip(names, models, strict=True)):
        values = values_of(model)
        shown = thinned(len(values))
        series.append(
            Series(
                label=name,
                x=[k + 1 for k in shown],
                y=[values[k] for k in shown],
                style=style_of(index) | ({} if len(models) > 1 else {"marker": ""}),
                marker_spacing=MARKER_SPACING,
            )
        )
    return Lines(
        series=tuple(series),
        x=Axis(label=labels[0], is_log=True),
        y=Axis(label=labels[1], is_log=True, floor=LOWEST),
    )


def thinned(length: int) -> list[int]:
    """All indices, or some that are evenly spread on a log scale, the last two among them."""
    spread = {round(length ** (step / (MAX_POINTS - 1))) - 1 for step in range(MAX_POINTS)}
    return list(range(length)) if length <= MAX_POINTS else sorted(spread | {length - 2})
