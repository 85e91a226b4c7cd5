"""The charts of a benchmark: one bar for each variant, ours in colour."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from highrank.report.figure import PANEL, Axis, Bars, Series, draw
from highrank.report.theme import LIGHT, TRUTH
from highrank.studies.bench.harness import Measurement
from highrank.studies.bench.table import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OURS = "fused"
OURS_COLOR = "series-3"
LABEL_SIZE = 10


def time_chart(measurements: Sequence[Measurement], baseline: str, title: str = "") -> Bars:
    """Times, divided by the baseline's."""
    points = {m.name: m.time_ratios[baseline] for m in measurements if baseline in m.time_ratios}
    return _bars(points, Axis(label=f"time ÷ {baseline}"), title)


def memory_chart(measurements: Sequence[Measurement], title: str = "") -> Bars:
    """Peak memory above the inputs, in MiB, on a log scale."""
    points = {m.name: m.peak_bytes / MIB for m in measurements if m.peak_bytes}
    return _bars(points, Axis(label="peak memory, MiB", is_log=True), title)


def draw_bars(*charts: Bars, size: tuple[float, float] = PANEL, margin: float = 0.04) -> "Figure":
    """As `draw`, with a value on each bar, slanted names, and a log scale where it is asked for."""
    figure = draw(*charts, size=size, margin=margin)
    # One series needs no legend.
    for legend in figure.legends:
        legend.remove()
    for axes, chart in zip(figure.axes, charts, strict=True):
        _finish(axes, chart)
    return figure


def _bars(points: dict[str, float], y: Axis, title: str) -> Bars:
    series = Series(label=y.label, x=range(len(points)), y=list(points.values()), style=TRUTH)
    return Bars(categories=tuple(points), series=(series,), x=Axis(label=""), y=y, title=title)


def _finish(axes: "Axes", chart: Bars) -> None:
    values = chart.series[0].y
    for name, bar in zip(chart.categories, axes.patches, strict=True):
        if name == OURS:
            bar.set(facecolor=LIGHT[OURS_COLOR], edgecolor=LIGHT[OURS_COLOR])
    for label in axes.get_xticklabels():
        label.set(rotation=40, horizontalalignment="right", rotation_mode="anchor")
    if chart.y.is_log:
        _log_scale(axes, values)
    else:
        axes.set_ylim(0, 1.12 * max(values, default=1.0))
    for x, value in enumerate(values):
        axes.annotate(
            _short(value),
            (x, value),
            xytext=(0, 3),
            textcoords="offset points",
            horizontalalignment="center",
            color=LIGHT["ink"],
            fontsize=LABEL_SIZE,
        )


def _log_scale(axes: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low = 10.0 ** math.floor(math.log10(min(values, default=1.0)))
    axes.set_yscale("log")
    axes.set_ylim(low, 2 * max(values, default=10.0))
    axes.yaxis.set_major_locator(LogLocator(base=10.0, subs=(1, 2, 5), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
