"""Charts: plain descriptions in, matplotlib figures out, as SVG for pages or PNG for documents.

Figures are drawn in the light colours of `theme`, and in no others. In a page's SVG each colour
becomes a variable of the page (`var(--ink)`) and text takes the page's font, so that a chart
follows the reader's theme; without a size of its own it fills the width that it is given.
"""

import hashlib
import io
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank.files import write_atomically
from highrank.report.formats import power
from highrank.report.theme import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. At this width a chart that fills a phone of 360 px shows text about as large as here.
PANEL = (4.4, 3.5)
FONT_SIZE = 12
# A line with more points than this is drawn without markers.
MAX_MARKERS = 24
# Inches of the legend's line and gaps, and of a letter of its labels.
LEGEND_LINE, LEGEND_LETTER = 0.62, 0.094


@dataclass(frozen=True, kw_only=True)
class Axis:
    label: str
    is_log: bool = False
    ticks: tuple[float, ...] | None = None
    """Where to put the numbers; chosen from the data if None."""
    floor: float = 1e-12
    """On a logarithmic axis: what is smaller, zero included, is drawn here, under a tick "≤"."""


@dataclass(frozen=True, kw_only=True)
class Series:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style
    marker_spacing: float | None = None
    """Between the markers of a line with many points, as a fraction of the chart's diagonal; such
    a line has none if None."""
    intervals: Sequence[tuple[float, float]] = ()
    """A vertical line through each point of a line, or none."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line with a label at its top."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One line per series."""

    series: tuple[Series, ...]
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The first series as bars, the others as dots before them; `x` of a series counts from 0."""

    categories: tuple[str, ...]
    series: tuple[Series, ...]
    x: Axis
    y: Axis
    title: str = ""
    has_values: bool = False
    """Each bar has its value above it, and its category at an angle below."""
    highlighted: str = ""
    """The category whose bar is in colour."""


Chart = Lines | Bars


def draw(*charts: Chart, size: tuple[float, float] = PANEL, margin: float = 0.04) -> "Figure":
    """A figure of charts side by side, under the legend of the first.

    Args:
        size: inches of each chart.
        margin: inches; a page gives its charts a margin, a picture has to bring its own.
    """
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(size[0] * len(charts), size[1]))
        figure.set_layout_engine("constrained", w_pad=margin, h_pad=margin)
        panels = figure.subplots(1, len(charts), squeeze=False)[0]
        for axes, chart in zip(panels, charts, strict=True):
            if isinstance(chart, Lines):
                _draw_lines(axes, chart)
            else:
                _draw_bars(axes, chart)
            _write_labels(axes, chart)
        if isinstance(charts[0], Bars) and len(charts[0].series) == 1:
            # The name of the axis is that of the only series, too.
            return figure
        handles, labels = panels[0].get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        order = [series.label for series in charts[0].series]
        handles = [by_label[label] for label in order]
        figure.legend(
            handles,
            order,
            loc="outside upper left",
            ncols=_num_columns(order, size[0] * len(charts)),
            borderaxespad=margin * 72 / FONT_SIZE,
        )
    return figure


def _num_columns(labels: Sequence[str], width: float) -> int:
    """As many as fit beside each other."""
    for count in range(len(labels), 1, -1):
        # Labels fill the columns from the top.
        rows = math.ceil(len(labels) / count)
        columns = [labels[start : start + rows] for start in range(0, len(labels), rows)]
        letters = sum(max(map(len, column)) for column in columns)
        if len(columns) * LEGEND_LINE + letters * LEGEND_LETTER <= width:
            return count
    return 1


def to_svg(figure: "Figure") -> str:
    """The figure as an `<svg>` element for a page: it scales, and takes its colours and font."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _style():
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _embedded(text.getvalue())


def save_png(figure: "Figure", path: Path, dpi: int = 150) -> None:
    """Write the figure in the light theme."""
    options: dict[str, Any] = {"format": "png", "dpi": dpi, "metadata": {"Software": None}}
    with _style():
        write_atomically(path, lambda temporary: figure.savefig(temporary, **options))


def describe(chart: Chart) -> str:
    """The chart in words: the points of each series, or its ends where there are many."""
    sentences = [f"{chart.y.label}, by {chart.x.label}."]
    for series in chart.series:
        xs = chart.categories if isinstance(chart, Bars) else [f"{x:,}" for x in series.x]
        points = [f"{y:.3g} at {x}" for x, y in zip(xs, series.y, strict=True)]
        if len(points) > MAX_MARKERS:
            points = [f"{len(points)} points from {points[0]} to {points[-1]}"]
        sentences.append(f"{series.label}: {', '.join(points)}.")
    return " ".join(sentences)


def _write_labels(axes: "Axes", chart: Chart) -> None:
    axes.set_xlabel(chart.x.label)
    # The name of the vertical axis stands above it, where it takes no width from the data.
    axes.annotate(
        chart.y.label,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 6),
        textcoords="offset points",
        color=LIGHT["muted"],
    )
    if chart.title:
        axes.set_title(chart.title, loc="left", pad=26)


def _draw_lines(axes: "Axes", chart: Lines) -> None:
    for index, line in enumerate(chart.series):
        is_long, spacing = len(line.x) > MAX_MARKERS, line.marker_spacing
        axes.plot(
            [_shown(x, chart.x) for x in line.x],
            [_shown(y, chart.y) for y in line.y],
            label=line.label,
            linestyle=(0, (2.4, 2.2)) if line.style.is_dashed else "-",
            # Each line begins a little later, so that markers of lines that coincide do not.
            markevery=(spacing * index / len(chart.series), spacing) if is_long and spacing else 1,
            **_look(line.style, has_marker=not is_long or spacing is not None),
        )
        for x, (low, high) in zip(line.x, line.intervals, strict=False):
            ends = [_shown(y, chart.y) for y in (low, high)]
            axes.plot([_shown(x, chart.x)] * 2, ends, color=LIGHT[line.style.color], linewidth=1.2)
    xs = [x for line in chart.series for x in line.x] + [mark.x for mark in chart.marks]
    ys = [y for line in chart.series for y in (*line.y, *chain(*line.intervals))]
    _scale(axes, "x", chart.x, xs)
    # The labels of the marks stand in a strip above the data.
    _scale(axes, "y", chart.y, ys, headroom=0.14 if chart.marks else 0.0)
    for mark in chart.marks:
        axes.axvline(mark.x, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (1, 1.4)), zorder=1)
        is_left = mark.x < (min(xs) + max(xs)) / 2
        axes.annotate(
            mark.label,
            (mark.x, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(5 if is_left else -5, -2),
            textcoords="offset points",
            horizontalalignment="left" if is_left else "right",
            verticalalignment="top",
            color=LIGHT["muted"],
        )


def _draw_bars(axes: "Axes", chart: Bars) -> None:
    bars, *others = chart.series
    edge = LIGHT[bars.style.color]
    drawn = axes.bar(
        bars.x, bars.y, width=0.86, color=LIGHT["bar"], edgecolor=edge, label=bars.label
    )
    if chart.highlighted in chart.categories:
        drawn[chart.categories.index(chart.highlighted)].set(color=LIGHT["series-3"])
    for k, dots in enumerate(others):
        shift = 0.26 * (k - (len(others) - 1) / 2)
        xs = [x + shift for x in dots.x]
        axes.plot(xs, dots.y, label=dots.label, linestyle="none", **_look(dots.style, True))
    axes.set_xticks(range(len(chart.categories)), chart.categories)
    axes.set_xlim(-0.6, len(chart.categories) - 0.4)
    if chart.has_values:
        values = [f"{y:,.0f}" if y >= 10 else f"{y:.2f}" for y in bars.y]
        axes.bar_label(drawn, values, padding=3, fontsize=10)
        axes.margins(y=0.12)
        for label in axes.get_xticklabels():
            label.set(rotation=40, horizontalalignment="right", rotation_mode="anchor")
    if chart.y.is_log:
        # From the power of ten below the lowest bar, so that it has a height.
        low = 10.0 ** math.floor(math.log10(min(bars.y)))
        _scale(axes, "y", chart.y, (low, 2 * max(bars.y)))
    else:
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=5)


def _look(style: Style, has_marker: bool) -> dict[str, Any]:
    return {
        "color": LIGHT[style.color],
        "linewidth": style.width,
        "marker": style.marker if has_marker else "",
        "markersize": style.marker_size,
        "markeredgecolor": LIGHT["surface"],
        "markeredgewidth": 0.8,
    }


def _scale(
    axes: "Axes", name: str, axis: Axis, values: Iterable[float], headroom: float = 0.0
) -> None:
    """Set limits and numbers of one axis such that all values are inside."""
    target = axes.xaxis if name == "x" else axes.yaxis
    shown = [_shown(value, axis) for value in values]
    low, high = min(shown), max(shown)
    if not axis.is_log:
        pad = 0.05 * (high - low or 1.0)
        axes.set(**{f"{name}lim": (low - pad, high + pad + headroom * (high - low))})
        if axis.ticks is not None:
            target.set_ticks(axis.ticks)
        return
    ratio = max(high / low, 2.0)
    axes.set(**{f"{name}scale": "log"})
    axes.set(**{f"{name}lim": (low * ratio**-0.06, low * ratio ** (1.06 + headroom))})
    ticks = axis.ticks or _log_ticks(low, low * ratio)
    target.set_ticks(
        ticks, [_tick_label(tick, is_floor=tick < 1.001 * axis.floor) for tick in ticks]
    )
    target.set_ticks([], minor=True)


def _shown(value: float, axis: Axis) -> float:
    return max(value, axis.floor) if axis.is_log else value


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, at most seven; with others between them where there are few."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 7))
    decades = [10.0**n for n in range(first, last + 1, step)]
    if last - first >= 2:
        return decades
    digits = (1, 2, 5) if high / low > 5 else range(1, 10)
    # One number alone gives no scale.
    return _ticks_of(digits, low, high, 2) or _ticks_of([n / 2 for n in range(2, 20)], low, high)


def _ticks_of(digits: Iterable[float], low: float, high: float, least: int = 1) -> list[float]:
    """These digits times powers of ten, from low to high; none if there are not so many."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    around = [digit * 10.0**n for n in powers for digit in digits]
    found = [tick for tick in around if low * 0.999 <= tick <= high * 1.001]
    return found if len(found) >= least else []


def _tick_label(value: float, is_floor: bool = False) -> str:
    if value >= 1e6:
        text = f"{value / 1e6:g}M"
    elif value >= 1e3:
        text = f"{value / 1e3:g}k"
    else:
        text = f"{value:g}" if value >= 1e-3 else power(value)
    return f"≤ {text}" if is_floor else text


def _style() -> AbstractContextManager[None]:
    """Our settings on top of matplotlib's own: those of the user's matplotlibrc do not apply."""
    from matplotlib import style

    ink, muted, surface = LIGHT["ink"], LIGHT["muted"], LIGHT["surface"]
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "highrank",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT_SIZE,
        "text.color": ink,
        # A token may have a dollar sign.
        "text.parse_math": False,
        "figure.facecolor": surface,
        "axes.facecolor": surface,
        "axes.edgecolor": muted,
        "axes.labelcolor": muted,
        "axes.titlesize": 13,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": LIGHT["grid"],
        "xtick.color": muted,
        "ytick.color": muted,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.handlelength": 1.8,
        "legend.handletextpad": 0.5,
        "legend.columnspacing": 1.2,
        "legend.borderpad": 0.2,
    }
    return style.context(["default", settings])


def _embedded(document: str) -> str:
    """The `<svg>` element of a document that is drawn in the colours of `theme.LIGHT`."""
    names = {color: name for name, color in LIGHT.items()}
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    # Styles of an inline SVG would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    # matplotlib before 3.11 writes the shorthand.
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: var(--{names[m[2]]})", svg)
    return _with_own_ids(svg)


def _with_own_ids(svg: str) -> str:
    """Drop the ids that nothing refers to; mark the others, so that charts can share a page."""
    own = "chart" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))

    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{own}-{m[1]}"' if m[1] in used else "", svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{own}-", svg)
