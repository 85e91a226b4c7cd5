"""Charts: plain descriptions in, matplotlib figures out, as SVG for pages or PNG for documents.

Figures are drawn in the light colours of `theme`, and in no others. In a page's SVG each colour
becomes a variable of the page (`var(--ink)`) and text takes the page's font, so that a chart
follows the reader's theme; without a size of its own it fills the width that it is given.
"""

import hashlib
import io
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank.files import write_atomically
from highrank.report.formats import scientific
from highrank.report.theme import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. At this width a chart that fills a phone of 360 px shows text about as large as here.
PANEL = (4.4, 3.5)
FONT_SIZE = 12
# A line with more points than this is drawn without markers.
MAX_MARKERS = 24
STYLE_SHEET = Path(__file__).with_name("figure.mplstyle")


@dataclass(frozen=True, kw_only=True)
class Axis:
    label: str
    is_log: bool = False
    ticks: tuple[float, ...] | None = None
    """Where to put the numbers; chosen from the data if None."""
    floor: float = 1e-12
    """On a logarithmic axis: what is smaller, zero included, is drawn here, under a tick "≤"."""

    def shown(self, values: Sequence[float]) -> list[float]:
        """The values as they are drawn."""
        return [max(value, self.floor) for value in values] if self.is_log else list(values)


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
        handles = [_draw(axes, chart) for axes, chart in zip(panels, charts, strict=True)][0]
        if isinstance(charts[0], Bars) and len(handles) == 1:
            # The name of the axis is that of the only series, too.
            return figure
        # As many columns as fit beside each other.
        for num_columns in range(len(handles), 0, -1):
            legend = figure.legend(
                handles=handles,
                loc="outside upper left",
                ncols=num_columns,
                borderaxespad=margin * 72 / FONT_SIZE,
            )
            if num_columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()
    return figure


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
    sentences = [f"{chart.y.label}, by {chart.x.label}."] if chart.x.label else []
    for series in chart.series:
        xs = chart.categories if isinstance(chart, Bars) else [f"{x:,}" for x in series.x]
        points = [f"{y:.3g} at {x}" for x, y in zip(xs, series.y, strict=True)]
        if len(points) > MAX_MARKERS:
            points = [f"{len(points)} points from {points[0]} to {points[-1]}"]
        sentences.append(f"{series.label}: {', '.join(points)}.")
    return " ".join(sentences)


def _draw(axes: "Axes", chart: Chart) -> list[Any]:
    """Draw one chart, and return what its legend shows."""
    handles = _draw_lines(axes, chart) if isinstance(chart, Lines) else _draw_bars(axes, chart)
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
    return handles


def _draw_lines(axes: "Axes", chart: Lines) -> list[Any]:
    handles = []
    for index, line in enumerate(chart.series):
        is_long, spacing = len(line.x) > MAX_MARKERS, line.marker_spacing
        handles += axes.plot(
            chart.x.shown(line.x),
            chart.y.shown(line.y),
            label=line.label,
            linestyle=(0, (2.4, 2.2)) if line.style.is_dashed else "-",
            # Each line begins a little later, so that markers of lines that coincide do not.
            markevery=(spacing * index / len(chart.series), spacing) if is_long and spacing else 1,
            **_look(line.style, has_marker=not is_long or spacing is not None),
        )
        if line.intervals:
            low, high = map(chart.y.shown, zip(*line.intervals, strict=True))
            color = LIGHT[line.style.color]
            axes.vlines(chart.x.shown(line.x), low, high, color=color, linewidth=1.2)
    for mark in chart.marks:
        axes.axvline(mark.x, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (1, 1.4)), zorder=1)
    _scale(axes, "x", chart.x)
    _scale(axes, "y", chart.y)
    if chart.marks:
        _label_marks(axes, chart)
    return handles


def _label_marks(axes: "Axes", chart: Lines) -> None:
    """Write the labels of the marks into a strip above the data."""
    low, high = axes.get_ylim()
    axes.set_ylim(top=high * (high / low) ** 0.14 if chart.y.is_log else high + 0.14 * (high - low))
    for mark in chart.marks:
        is_left = mark.x < sum(axes.get_xlim()) / 2
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


def _draw_bars(axes: "Axes", chart: Bars) -> list[Any]:
    bars, *others = chart.series
    edge = LIGHT[bars.style.color]
    drawn = axes.bar(
        bars.x, bars.y, width=0.86, color=LIGHT["bar"], edgecolor=edge, label=bars.label
    )
    handles: list[Any] = [drawn]
    if chart.highlighted in chart.categories:
        drawn[chart.categories.index(chart.highlighted)].set(color=LIGHT["series-3"])
    for k, dots in enumerate(others):
        shift = 0.26 * (k - (len(others) - 1) / 2)
        xs, look = [x + shift for x in dots.x], _look(dots.style, has_marker=True)
        handles += axes.plot(xs, dots.y, label=dots.label, linestyle="none", **look)
    axes.set_xticks(range(len(chart.categories)), chart.categories)
    axes.set_xlim(-0.6, len(chart.categories) - 0.4)
    if chart.has_values:
        values = [f"{y:,.0f}" if y >= 10 else f"{y:.2f}" for y in bars.y]
        axes.bar_label(drawn, values, padding=3, fontsize=10)
        axes.margins(y=0.12)
        for label in axes.get_xticklabels():
            label.set(rotation=40, horizontalalignment="right", rotation_mode="anchor")
    if chart.y.is_log:
        # From below the power of ten below the lowest bar, so that it has a height.
        axes.set_ylim(0.75 * 10.0 ** math.floor(math.log10(min(bars.y))), 2 * max(bars.y))
        _scale(axes, "y", chart.y)
    else:
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=5)
    return handles


def _look(style: Style, has_marker: bool) -> dict[str, Any]:
    return {
        "color": LIGHT[style.color],
        "linewidth": style.width,
        "marker": style.marker if has_marker else "",
        "markersize": style.marker_size,
        "markeredgecolor": LIGHT["surface"],
        "markeredgewidth": 0.8,
    }


def _scale(axes: "Axes", name: str, axis: Axis) -> None:
    """Set the scale and the numbers of one axis."""
    target = axes.xaxis if name == "x" else axes.yaxis
    ticks: Sequence[float] | None = axis.ticks
    if axis.is_log:
        axes.set(**{f"{name}scale": "log"})
        low, high = target.get_data_interval()
        if low == high:
            axes.set(**{f"{name}lim": (low / 2, low * 2)})
        ticks = ticks or _log_ticks(*target.get_view_interval())
        target.set_major_formatter(lambda value, _: _tick_label(value, axis.floor))
        target.set_ticks([], minor=True)
    if ticks is not None:
        target.set_ticks(ticks)


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, at most seven; with others between them where there are few."""
    from matplotlib.ticker import AutoLocator

    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first >= 2:
        return [10.0**n for n in range(first, last + 1, math.ceil((last - first + 1) / 7))]
    digits = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 5, 7)
    ticks: Sequence[float] = [
        digit * 10.0**n for n in range(first - 1, last + 1) for digit in digits
    ]
    if sum(low <= tick <= high for tick in ticks) < 2:
        # One number alone gives no scale.
        ticks = AutoLocator().tick_values(low, high)
    return [tick for tick in ticks if low <= tick <= high]


def _tick_label(value: float, floor: float) -> str:
    if value >= 1e6:
        text = f"{value / 1e6:g}M"
    elif value >= 1e3:
        text = f"{value / 1e3:g}k"
    else:
        text = f"{value:g}" if value >= 1e-3 else scientific(value)
    return f"≤ {text}" if value < 1.001 * floor else text


def _style() -> AbstractContextManager[None]:
    """Our settings on top of matplotlib's own: those of the user's matplotlibrc do not apply."""
    from matplotlib import style

    return style.context(["default", STYLE_SHEET])


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
    # Ids that nothing refers to go; the others are marked, so that charts can share a page.
    own = "chart" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{own}-{m[1]}"' if m[1] in used else "", svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{own}-", svg)
