"""Charts: plain descriptions in, matplotlib figures out, as SVG for pages or PNG for documents.

Figures are drawn in the colours of `LIGHT`, and in no others. In a page's SVG each colour
becomes a variable of the page (`var(--ink)`) and text takes the page's font, so that a chart
follows the reader's theme; without a size of its own it fills the width that it is given.
"""

import hashlib
import io
import math
import re
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from highrank.files import write_atomically
from highrank.report.formats import scientific

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In light and in dark. Text has a contrast of at least 4.5 with what is behind it, a line of at
# least 3. The series differ also for the colour-blind; markers and dashes tell them apart, too.
COLORS = {
    "page": ("#f5f6f8", "#0f1318"),
    "surface": ("#ffffff", "#181e26"),
    "ink": ("#1b2430", "#e7ebf0"),
    "muted": ("#596577", "#a0abb9"),
    "grid": ("#e2e6eb", "#2d3641"),
    "accent": ("#e8f1fa", "#1b2e42"),
    "truth": ("#87919e", "#778291"),
    "bar": ("#d3d9e0", "#3a4552"),
    "series-1": ("#cf4f0c", "#ff9a5c"),
    "series-2": ("#0a8464", "#45c9a0"),
    "series-3": ("#1766ab", "#6fb6ff"),
    "series-4": ("#8a4fa3", "#cfa0e6"),
    "series-5": ("#8f6b00", "#dcb94a"),
    "series-6": ("#c2266e", "#ff8fbd"),
}
LIGHT = {name: light for name, (light, _) in COLORS.items()}
DARK = {name: dark for name, (_, dark) in COLORS.items()}
# Options of matplotlib's `plot`.
Style = dict[str, Any]
DASHED = (0, (2.4, 2.2))


def line_style(color: str, **options: Any) -> Style:
    """The look of a series: a key of `LIGHT`, and options of matplotlib's `plot`."""
    return {"color": LIGHT[color], **options}


def series_style(index: int) -> Style:
    """The look of one of any number of series: colours and markers of six, then dashed."""
    turn, place = divmod(index, 6)
    style = line_style(f"series-{(1, 3, 2, 4, 5, 6)[place]}", marker="oDs^vP"[place])
    return style | {"linestyle": DASHED} if turn % 2 else style


TRUTH = line_style("truth", linewidth=5.0)
# Inches. At this width a chart that fills a phone of 360 px shows text about as large as here.
PANEL = (4.4, 3.5)
FONT_SIZE = 12
# Inches of each line of a legend after the first, and letters of a title in an inch.
LEGEND_LINE, TITLE_LETTERS = 0.28, 7.5
# A line with more points than this is drawn without markers.
MAX_MARKERS = 24
# Categories whose names fit beside each other.
MAX_CATEGORIES = 20
LEVEL: Style = {"color": LIGHT["muted"], "linewidth": 1.2, "linestyle": (0, (4, 2))}
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
    band: Sequence[tuple[float, float]] = ()
    """Ends of what is shaded behind each point of a line, or none."""


class Mark(NamedTuple):
    """A vertical line with a label at its top."""

    x: float
    label: str
    color: str = LIGHT["muted"]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One line per series."""

    series: tuple[Series, ...]
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()
    levels: tuple[float, ...] = ()
    """Dashed horizontal lines, where the data come near them."""
    level_label: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The first series as bars, the others as dots before them; `x` of a series counts from 0."""

    categories: tuple[str, ...]
    series: tuple[Series, ...]
    x: Axis
    y: Axis
    title: str = ""
    level: float | None = None
    """A dashed horizontal line."""
    has_values: bool = False
    """Each bar has its value above it, and its category at an angle below."""
    highlighted: str = ""
    """The category whose bar is in colour."""


Chart = Lines | Bars


def draw(
    *charts: Chart, size: tuple[float, float] = PANEL, margin: float = 0.04, title: str = ""
) -> "Figure":
    """A figure of charts side by side, under the legend of the first.

    Args:
        size: inches of each chart; a legend of several lines adds to the height.
        margin: inches; a page gives its charts a margin, a picture has to bring its own.
        title: of a picture that stands alone.
    """
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(size[0] * len(charts), size[1]))
        figure.set_layout_engine("constrained", w_pad=margin, h_pad=margin)
        panels = figure.subplots(1, len(charts), squeeze=False)[0]
        handles = [_draw(axes, chart) for axes, chart in zip(panels, charts, strict=True)][0]
        title = textwrap.fill(title, int(TITLE_LETTERS * figure.get_figwidth()))
        if isinstance(charts[0], Bars) and len(handles) == 1:
            # The name of the axis is that of the only series, too.
            if title:
                figure.suptitle(title, x=0.01, horizontalalignment="left", fontweight="bold")
            return figure
        # As many columns as fit beside each other.
        for num_columns in range(len(handles), 0, -1):
            legend = figure.legend(
                handles=handles,
                loc="outside upper left",
                ncols=num_columns,
                borderaxespad=margin * 72 / FONT_SIZE,
                title=title or None,
                title_fontproperties={"size": 14, "weight": "bold"},
                alignment="left",
            )
            if num_columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()
        figure.set_figheight(size[1] + LEGEND_LINE * (math.ceil(len(handles) / num_columns) - 1))
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
    _note(axes, chart.y.label, (0, 1), (0, 6), xycoords="axes fraction", fontsize=FONT_SIZE)
    if chart.title:
        axes.set_title(chart.title, loc="left", pad=26)
    return handles


def _draw_lines(axes: "Axes", chart: Lines) -> list[Any]:
    handles = []
    for index, line in enumerate(chart.series):
        is_long, spacing = len(line.x) > MAX_MARKERS, line.marker_spacing
        marker = {"marker": ""} if is_long and spacing is None else {}
        handles += axes.plot(
            chart.x.shown(line.x),
            chart.y.shown(line.y),
            label=line.label,
            # Each line begins a little later, so that markers of lines that coincide do not.
            markevery=(spacing * index / len(chart.series), spacing) if is_long and spacing else 1,
            **(line.style | marker),
        )
        xs, color = chart.x.shown(line.x), line.style["color"]
        if line.intervals:
            low, high = map(chart.y.shown, zip(*line.intervals, strict=True))
            axes.vlines(xs, low, high, color=color, linewidth=1.2)
        if line.band:
            low, high = map(chart.y.shown, zip(*line.band, strict=True))
            axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    _scale(axes, "x", chart.x)
    _scale(axes, "y", chart.y)
    if chart.marks:
        _draw_marks(axes, chart)
    levels = [level for level in chart.levels if level >= axes.get_ylim()[0]]
    for level in levels:
        axes.axhline(level, **LEVEL, zorder=1)
    if levels:
        _scale(axes, "y", chart.y)
    if levels and chart.level_label:
        place, system = (0, min(levels)), axes.get_yaxis_transform()
        _note(axes, chart.level_label, place, (4, -3), xycoords=system, verticalalignment="top")
    return handles


def _draw_marks(axes: "Axes", chart: Lines) -> None:
    """Upright lines, with labels below each other in a strip above the data."""
    strip, (low, high) = 0.06 + 0.08 * len(chart.marks), axes.get_ylim()
    axes.set_ylim(
        top=high * (high / low) ** strip if chart.y.is_log else high + strip * (high - low)
    )
    right, last = axes.get_xlim()[1], max(mark.x for mark in chart.marks)
    for row, mark in enumerate(chart.marks):
        is_beyond, x = mark.x > right, min(mark.x, right)
        if not is_beyond:
            style: Style = {"linewidth": 1.4, "linestyle": (0, (1, 1.4)), "zorder": 1}
            axes.axvline(x, color=mark.color, **style)
        place = axes.transAxes.inverted().transform(axes.transData.transform((x, high)))[0]
        # Away from the other lines, as far as there is space.
        is_left = place < 0.3 or (place < 0.5 and mark.x == last)
        _note(
            axes,
            f"{mark.label} →" if is_beyond else mark.label,
            (x, 1),
            (5 if is_left else -5, -2 - 15 * row),
            xycoords=axes.get_xaxis_transform(),
            horizontalalignment="left" if is_left else "right",
            verticalalignment="top",
            # Other lines do not cross it out.
            bbox={"facecolor": LIGHT["surface"], "edgecolor": "none", "pad": 0.5},
        )


def _note(
    axes: "Axes", text: str, place: tuple[float, float], offset: tuple[float, float], **options: Any
) -> None:
    """A small text beside a place, so many points away."""
    look: Style = {"color": LIGHT["muted"], "fontsize": 11} | options
    axes.annotate(text, place, xytext=offset, textcoords="offset points", **look)


def _draw_bars(axes: "Axes", chart: Bars) -> list[Any]:
    bars, *others = chart.series
    edge, total = bars.style["color"], len(chart.categories)
    drawn = axes.bar(
        bars.x, bars.y, width=0.86, color=LIGHT["bar"], edgecolor=edge, label=bars.label
    )
    handles: list[Any] = [drawn]
    if chart.highlighted in chart.categories:
        drawn[chart.categories.index(chart.highlighted)].set(color=LIGHT["series-3"])
    for k, dots in enumerate(others):
        xs = [x + 0.26 * (k - (len(others) - 1) / 2) for x in dots.x]
        handles += axes.plot(xs, dots.y, label=dots.label, **(dots.style | {"linestyle": "none"}))
    step = 1 if total <= MAX_CATEGORIES else 5 * math.ceil(total / MAX_CATEGORIES / 5)
    axes.set_xticks(range(step - 1, total, step), chart.categories[step - 1 :: step])
    axes.set_xlim(-0.6, total - 0.4)
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
    if chart.level is not None:
        axes.axhline(chart.level, **LEVEL, zorder=3)
        axes.set_ylim(top=1.05 * max(chart.level, *(y for one in chart.series for y in one.y)))
    return handles


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
    if sum(low <= tick <= high for tick in ticks) < 3:
        # One number or two give no scale.
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
    """The `<svg>` element of a document that is drawn in the colours of `LIGHT`."""
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
