"""Charts: what they show, and that they fit into any page."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from highrank.report.figure import (
    LIGHT,
    TRUTH,
    Axis,
    Bars,
    Lines,
    Mark,
    Series,
    describe,
    draw,
    line_style,
    save_png,
    to_svg,
)

STYLES = {"softmax": TRUTH, "moc": line_style("series-1", marker="o", linestyle="--")}
EXCESS = Axis(label="excess", is_log=True, floor=1e-5)


def lines(*values, y=EXCESS, **options):
    series = tuple(
        Series(label=head, x=range(len(ys)), y=ys, style=style)
        for (head, style), ys in zip(STYLES.items(), values, strict=False)
    )
    return Lines(series=series, x=Axis(label="d"), y=y, **options)


def bars():
    series = (
        Series(label="Truth", x=range(2), y=(0.5, 0.2), style=TRUTH),
        Series(label="MoS", x=range(2), y=(0.4, 0.3), style=STYLES["moc"]),
    )
    y = Axis(label="probability")
    return Bars(categories=("<b>", "$&$"), series=series, x=Axis(label="word"), y=y)


def ranking(**axis):
    """One series of bars under their values."""
    series = Series(label="MiB", x=range(3), y=(33.3, 5.25, 2800), style=TRUTH)
    return Bars(
        categories=("a", "b", "c"),
        series=(series,),
        x=Axis(label=""),
        y=Axis(label="MiB", **axis),
        has_values=True,
        highlighted="b",
    )


def measured():
    """A line with intervals, on a log axis of its own ticks."""
    ends = [(0.05, 0.2), (0.3, 0.6)]
    series = Series(label="MoS", x=(1, 8), y=(0.1, 0.5), style=TRUTH, intervals=ends)
    return Lines(series=(series,), x=Axis(label="K", is_log=True, ticks=(1, 8)), y=EXCESS)


CHARTS = {
    "lines": lines((0.5, 0.1), (0.4, 0.02)),
    "marks": lines((0.5, 0.1), marks=(Mark(1, "here"),), levels=(0.3,), level_label="this"),
    "linear": lines((0.5, 0.1), y=Axis(label="share")),
    "intervals": measured(),
    "bars": bars(),
    "ranking": ranking(),
    "log ranking": ranking(is_log=True),
}


def texts(figure):
    svg = ElementTree.fromstring(to_svg(figure))
    return [element.text for element in svg.iter() if element.text]


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS.keys())
def test_svg_scales_and_takes_colours_and_font_from_the_page_alone(chart):
    svg = to_svg(draw(chart))
    root = ElementTree.fromstring(svg)
    assert "viewBox" in root.attrib and not {"width", "height"} & root.attrib.keys()
    assert not re.search(r": *#", svg)
    assert {"ink", "muted"} <= set(re.findall(r"var\(--([\w-]+)\)", svg)) <= LIGHT.keys()
    assert all("fill: var(--" in text for text in re.findall("<text[^>]*>", svg))
    assert "font-family" not in svg and "<style" not in svg
    # Neither the settings of the user nor the time of drawing change anything.
    theirs = {"figure.facecolor": "black", "xtick.labelcolor": "red", "lines.markeredgewidth": 3}
    with matplotlib.rc_context({**theirs, "font.size": 20, "axes.linewidth": 4}):
        before = dict(matplotlib.rcParams)
        assert to_svg(draw(chart)) == svg
        assert dict(matplotlib.rcParams) == before


def test_ids_of_different_charts_differ_and_references_are_kept():
    seen = set()
    for chart in CHARTS.values():
        svg = to_svg(draw(chart))
        ids = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) == set(ids)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        seen |= set(ids)


@pytest.mark.parametrize("value", [0.0, 1e-7, 1e-5])
def test_what_is_below_the_floor_is_drawn_on_it_and_the_tick_says_so(value):
    figure = draw(lines((0.5, value)))
    assert figure.axes[0].lines[0].get_ydata()[1] == 1e-5
    assert "≤ 10⁻⁵" in texts(figure)
    assert not any("≤" in text for text in texts(draw(lines((0.5, 1e-4)))))


def test_all_data_lie_inside_and_below_the_labels_of_marks():
    axes = draw(CHARTS["marks"]).axes[0]
    label = next(text for text in axes.texts if text.get_text() == "here")
    points = axes.transData.transform(axes.lines[0].get_xydata())
    assert points[:, 1].max() < label.get_window_extent().y0
    assert axes.bbox.y0 <= points[:, 1].min()


@pytest.mark.parametrize("last", [1, 2, 4])
def test_a_mark_beyond_the_values_is_named_at_the_edge(last):
    marks = tuple(Mark(x, f"bound {x}") for x in (3, 130, 2306))
    figure = draw(lines(range(last), marks=marks))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame, is_beyond = axes.get_window_extent(), last < 4
    labels = [text for text in axes.texts if "bound" in text.get_text()]
    assert [text.get_text() for text in labels] == [
        "bound 3" + " →" * is_beyond,
        "bound 130 →",
        "bound 2306 →",
    ]
    for label in labels:
        extent = label.get_window_extent()
        assert frame.x0 <= extent.x0 and extent.x1 <= frame.x1
    assert len(axes.lines) == 1 + (not is_beyond)


@pytest.mark.parametrize("level, is_shown", [(0.2, True), (1e-3, False)])
def test_a_level_is_drawn_where_values_come_near_it(level, is_shown):
    axes = draw(lines((0.5, 0.1), levels=(level,), level_label="level")).axes[0]
    notes = [text for text in axes.texts if text.get_text() == "level"]
    assert len(notes) == is_shown and len(axes.lines) == 1 + is_shown


@pytest.mark.parametrize("total, ticks", [(20, 20), (21, 4), (104, 10)])
def test_many_bars_have_few_names_and_the_level_is_inside(total, ticks):
    series = Series(label="use", x=range(total), y=[0.1] * total, style=TRUTH)
    names, y = tuple(map(str, range(total))), Axis(label="use")
    axes = draw(Bars(categories=names, series=(series,), x=y, y=y, level=0.5)).axes[0]
    assert len(axes.get_xticks()) == ticks and axes.get_ylim()[1] > 0.5


def test_intervals_are_upright_lines_inside_the_axes():
    axes = draw(CHARTS["intervals"]).axes[0]
    (found,) = axes.collections
    assert [path.vertices.tolist() for path in found.get_paths()] == [
        [[1, 0.05], [1, 0.2]],
        [[8, 0.3], [8, 0.6]],
    ]
    assert axes.get_ylim()[0] < 0.05 and axes.get_ylim()[1] > 0.6
    assert list(axes.get_xticks()) == [1, 8]


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ((5_000, 2_000_000), ["10k", "100k", "1M"]),
        ((0.2, 8.0), ["0.2", "0.5", "1", "2", "5"]),
        ((110.0, 323.0), ["150", "200", "300"]),
        ((1e-6, 3.6e-6), ["10⁻⁶", "1.5·10⁻⁶", "2·10⁻⁶", "3·10⁻⁶"]),
    ],
)
def test_numbers_on_a_logarithmic_axis_are_round_and_short(values, numbers):
    figure = draw(lines(values, y=Axis(label="", is_log=True)))
    figure.draw_without_rendering()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == numbers


@pytest.mark.parametrize("low", [0.0, 1.01, 1.9, 101, 350, 5100])
@pytest.mark.parametrize("ratio", [1, 1.3, 2, 4, 30])
def test_a_logarithmic_axis_has_two_numbers_at_least(low, ratio):
    axes = draw(lines((low, low * ratio), y=Axis(label="rank", is_log=True))).axes[0]
    ticks = [tick for tick in axes.get_yticks() if axes.get_ylim()[0] < tick < axes.get_ylim()[1]]
    assert 2 <= len(ticks) <= 11


def test_the_legend_names_all_series_in_their_order_above_the_axes_and_inside_the_figure():
    figure = draw(bars())
    # Text is taken literally.
    assert {"<b>", "$&$"} <= set(texts(figure))
    (legend,) = figure.legends
    figure.canvas.draw()
    assert [text.get_text() for text in legend.get_texts()] == ["Truth", "MoS"]
    assert legend.get_window_extent().y0 > figure.axes[0].bbox.y1
    series = [Series(label="x" * 30, x=(1, 2), y=(1, 2), style=TRUTH)] * 3
    figure = draw(Lines(series=tuple(series), x=Axis(label=""), y=Axis(label="")))
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width


@pytest.mark.parametrize("chart", [lines((1, 0.1), (0.2, 0.02)), ranking()])
def test_a_picture_has_a_title_that_fits(chart):
    figure = draw(chart, title="Output layers on a text whose name is longer than the picture")
    figure.canvas.draw()
    owner = figure._suptitle or figure.legends[0].get_title()
    box = owner.get_window_extent()
    assert "\n" in owner.get_text() and box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_level_far_above_the_values_has_numbers_up_to_it():
    figure = draw(lines((1e-5, 1e-4), y=EXCESS, levels=(0.5,)))
    assert max(figure.axes[0].get_yticks()) >= 0.1


def test_a_band_is_shaded_inside_the_axes():
    series = Series(label="a", x=(0, 1), y=(1, 2), style=TRUTH, band=[(0.5, 1.5), (1, 5)])
    axes = draw(Lines(series=(series,), x=Axis(label="x"), y=Axis(label="y"))).axes[0]
    (found,) = axes.collections
    assert found.get_alpha() < 0.5 and axes.get_ylim()[0] < 0.5 and axes.get_ylim()[1] > 5


def test_a_description_has_all_points_or_the_ends_of_long_series():
    assert describe(CHARTS["lines"]) == (
        "excess, by d. softmax: 0.5 at 0, 0.1 at 1. moc: 0.4 at 0, 0.02 at 1."
    )
    assert "MoS: 0.4 at <b>, 0.3 at $&$." in describe(bars())
    assert describe(ranking()) == "MiB: 33.3 at a, 5.25 at b, 2.8e+03 at c."
    assert "softmax: 1000 points from 0 at 0 to 999 at 999." in describe(lines(range(1000)))


@pytest.mark.parametrize("is_log", [False, True])
def test_bars_have_their_values_above_them_inside_the_axes_and_one_stands_out(is_log):
    figure = draw(ranking(is_log=is_log))
    axes = figure.axes[0]
    assert {"33", "5.25", "2,800"} <= {text.get_text() for text in axes.texts}
    low, high = axes.get_ylim()
    assert low < 5.25 and high > 2800 * 1.1
    assert axes.get_yscale() == ("log" if is_log else "linear")
    assert not figure.legends and to_svg(figure).count("fill: var(--series-3)") == 1


def test_a_png_has_the_size_that_was_asked_for_and_one_that_fails_leaves_the_old(
    tmp_path, monkeypatch
):
    path, figure = tmp_path / "chart.png", draw(CHARTS["lines"], CHARTS["lines"], size=(4, 3))
    save_png(figure, path, dpi=50)
    old = path.read_bytes()
    assert old.startswith(b"\x89PNG")
    assert (int.from_bytes(old[16:20]), int.from_bytes(old[20:24])) == (400, 150)

    def half(target, **_options):
        target.write_bytes(b"\x89PNG")
        raise OSError("the disk is full")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError, match="the disk is full"):
        save_png(figure, path)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
