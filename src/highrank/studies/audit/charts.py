"""The charts of an audit: spectra, residuals, rank by contexts, use of components."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from highrank.analysis.components import ComponentReport
from highrank.analysis.rank import press_threshold
from highrank.report.figure import PANEL, Axis, Bars, Lines, Series, draw
from highrank.report.theme import LIGHT, TRUTH, Style
from highrank.studies.audit.measure import ModelAudit

FLOAT32_EPS = 2.0**-23
# Points of a curve: more cannot be seen.
MAX_POINTS = 300
# Far below the round-off of any model's own numbers.
LOWEST = 1e-9
# Components whose numbers fit beside each other.
MAX_CATEGORIES = 20
NOTE: dict[str, Any] = {"color": LIGHT["muted"], "fontsize": 11, "textcoords": "offset points"}
STYLES = (
    Style("series-1", marker="o", width=3.2, marker_size=8.0),
    Style("series-3", marker="D"),
    Style("series-2", marker="s", width=1.6, is_dashed=True),
    Style("series-4", marker="^"),
    Style("series-5", marker="v", is_dashed=True),
    Style("series-6", marker="X", width=1.6),
)
# Between markers, which tell the curves of several models apart.
MARKER_SPACING = 0.25


def spectra(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """Singular values divided by the largest."""
    labels = ("index, the largest first", "singular value ÷ the largest")
    return _curves(names, models, relative_values, labels)


def draw_spectra(
    chart: Lines,
    models: Sequence[ModelAudit],
    size: tuple[float, float] = PANEL,
    margin: float = 0.04,
) -> Any:
    """The figure of `spectra`, with the bounds and float32's round-off."""
    figure = draw(chart, size=size, margin=margin)
    axes = figure.axes[0]
    _mark_bounds(axes, models)
    thresholds = {
        press_threshold(1.0, (m.rank.num_contexts, m.rank.num_tokens), FLOAT32_EPS) for m in models
    }
    # Values of few contexts are all far above it.
    on_axis = [level for level in thresholds if level >= axes.get_ylim()[0]]
    for level in on_axis:
        axes.axhline(level, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    if on_axis:
        axes.annotate(
            "round-off of float32",
            (0, min(on_axis)),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, -3),
            verticalalignment="top",
            **NOTE,
        )
    return figure


def _mark_bounds(axes: Any, models: Sequence[ModelAudit]) -> None:
    """An upright line at each bound, with labels below each other in a strip above the data."""
    bounds: dict[int, str] = {}
    for index, model in enumerate(models):
        if model.rank.bound is not None:
            bounds.setdefault(model.rank.bound, style_of(index).color)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.08 * len(bounds)))
    left, right = axes.get_xlim()
    for row, (bound, color) in enumerate(sorted(bounds.items())):
        # With few contexts there are fewer values than the bound allows: it is beyond the axis.
        is_beyond, shown = bound > right, min(bound, right)
        if not is_beyond:
            style = {"linewidth": 1.4, "linestyle": (0, (1, 1.4)), "zorder": 1}
            axes.axvline(bound, color=LIGHT[color], **style)
        place = math.log(shown / left) / math.log(right / left)
        # Away from the other lines, as far as there is space.
        is_left = place < 0.78 and (place < 0.3 or bound == max(bounds))
        axes.annotate(
            f"bound {bound:,}{' →' if is_beyond else ''}",
            (shown, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(5 if is_left else -5, -2 - 15 * row),
            horizontalalignment="left" if is_left else "right",
            verticalalignment="top",
            # The lines of other bounds do not cross it out.
            bbox={"facecolor": LIGHT["surface"], "edgecolor": "none", "pad": 0.5},
            **NOTE,
        )


def residuals(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """The fraction of the sum of squares that is left without the first k singular values."""
    labels = ("first k singular values", "fraction that is left")
    return _curves(names, models, residual_values, labels)


def growth(names: Sequence[str], models: Sequence[ModelAudit], key: str) -> Lines | None:
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
    low = min(x for line in series for x in line.x)
    high = min(max(x for line in series for x in line.x), max(y for line in series for y in line.y))
    if low < high:
        ends = (low, high)
        series.insert(0, Series(label="one per context", x=ends, y=ends, style=TRUTH))
    return Lines(
        series=tuple(series),
        x=Axis(label="contexts", is_log=True),
        y=Axis(label="rank", is_log=True),
    )


def use(mixture: ComponentReport) -> Bars:
    """How much each component is used."""
    components = mixture.components
    return _bars(
        ("mean weight", [component.mean_weight for component in components]),
        ("largest in so many contexts", [c.largest_fraction for c in components]),
        Axis(label="fraction"),
    )


def differences(mixture: ComponentReport) -> Bars:
    """How far each component is from the others: on average, and from the nearest."""
    others = [
        [value for j, value in enumerate(row) if j != k]
        for k, row in enumerate(mixture.pair_divergence)
    ]
    return _bars(
        ("mean over the others", [sum(row) / len(row) for row in others]),
        ("the nearest", [min(row) for row in others]),
        Axis(label="divergence, nats"),
    )


def draw_components(chart: Bars, level: float) -> Any:
    """The figure of bars, with a dashed line at a level."""
    figure, total = draw(chart), len(chart.categories)
    axes = figure.axes[0]
    axes.axhline(level, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    axes.set_ylim(top=1.05 * max(level, *(y for series in chart.series for y in series.y)))
    if total > MAX_CATEGORIES:
        step = 5 * math.ceil(total / MAX_CATEGORIES / 5)
        shown = range(step - 1, total, step)
        axes.set_xticks(shown, [str(k + 1) for k in shown])
    return figure


def _bars(bars: tuple[str, list[float]], dots: tuple[str, list[float]], y: Axis) -> Bars:
    total = len(bars[1])
    return Bars(
        categories=tuple(str(k) for k in range(1, total + 1)),
        series=(
            Series(label=bars[0], x=range(total), y=bars[1], style=Style("series-3")),
            Series(label=dots[0], x=range(total), y=dots[1], style=Style("series-1", marker="o")),
        ),
        x=Axis(label="component"),
        y=y,
    )


def style_of(index: int) -> Style:
    """How the model of this index is drawn in every chart; beyond six, dashes change."""
    turn, place = divmod(index, len(STYLES))
    style = STYLES[place]
    return replace(style, is_dashed=not style.is_dashed) if turn % 2 else style


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
                style=style_of(index) if len(models) > 1 else replace(style_of(index), marker=""),
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
    if length <= MAX_POINTS:
        return list(range(length))
    steps = MAX_POINTS - 1
    spread = {round(length ** (step / steps)) - 1 for step in range(MAX_POINTS)}
    return sorted(spread | {length - 2})
