import re
import xml.etree.ElementTree as ElementTree

import pytest

from highrank.report.figure import Axis, Bars, Lines, Mark, Series, describe, draw, save_png, to_svg
from highrank.report.theme import HEAD_STYLES, LIGHT, TRUTH

EXCESS = Axis(label="excess", is_log=True, floor=1e-5)


def lines(*values, y=EXCESS, **options):
    series = tuple(
        Series(label=head, x=range(len(ys)), y=ys, style=style)
        for (head, style), ys in zip(HEAD_STYLES.items(), values, strict=False)
    )
    return Lines(series=series, x=Axis(label="d"), y=y, **options)


def bars():
    series = (
        Series(label="Truth", x=range(2), y=(0.5, 0.2), style=TRUTH),
        Series(label="MoS", x=range(2), y=(0.4, 0.3), style=HEAD_STYLES["mos"]),
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


CHARTS = {
    "lines": lines((0.5, 0.1), (0.4, 0.02)),
    "marks": lines((0.5, 0.1), marks=(Mark(x=1, label="here"),)),
    "linear": lines((0.5, 0.1), y=Axis(label="share")),
    "bars": bars(),
    "ranking": ranking(),
    "log ranking": ranking(is_log=True),
}


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.text]


@pytest.fixture(params=CHARTS.values(), ids=CHARTS.keys())
def chart(request):
    return request.param


def test_svg_is_well_formed_and_scales(chart):
    root = ElementTree.fromstring(to_svg(draw(chart)))
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & root.attrib.keys()


def test_svg_takes_colours_and_font_from_the_page(chart):
    svg = to_svg(draw(chart))
    assert not re.search(r": *#", svg)
    assert {"ink", "muted"} <= set(re.findall(r"var\(--([\w-]+)\)", svg)) <= LIGHT.keys()
    assert all("fill: var(--" in text for text in re.findall("<text[^>]*>", svg))
    assert "font-family" not in svg
    assert "<style" not in svg


def test_the_same_chart_is_drawn_the_same_twice(chart):
    assert to_svg(draw(chart)) == to_svg(draw(chart))


def test_the_settings_of_the_user_change_nothing(chart):
    import matplotlib

    want = to_svg(draw(chart))
    theirs = {"figure.facecolor": "black", "xtick.labelcolor": "red", "lines.markeredgewidth": 3}
    with matplotlib.rc_context({**theirs, "font.size": 20, "axes.linewidth": 4}):
        assert to_svg(draw(chart)) == want


def test_ids_of_different_charts_differ_and_references_are_kept():
    seen = set()
    for chart in CHARTS.values():
        svg = to_svg(draw(chart))
        ids = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) == set(ids)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        seen |= set(ids)


def test_each_head_has_its_own_colour():
    svg = to_svg(draw(lines((1, 2), (2, 3), (3, 4))))
    for style in HEAD_STYLES.values():
        assert f"stroke: var(--{style.color})" in svg


@pytest.mark.parametrize("value", [0.0, 1e-7, 1e-5])
def test_what_is_below_the_floor_is_drawn_on_it_and_the_tick_says_so(value):
    figure = draw(lines((0.5, value)))
    assert figure.axes[0].lines[0].get_ydata()[1] == 1e-5
    assert "≤ 10⁻⁵" in texts(to_svg(figure))


def test_nothing_says_below_when_nothing_is():
    assert not any("≤" in text for text in texts(to_svg(draw(lines((0.5, 1e-4))))))


def test_a_constant_can_be_drawn_on_any_axis():
    for value in (0.0, 0.3):
        assert "<svg" in to_svg(draw(lines((value, value))))
        assert "<svg" in to_svg(draw(lines((value, value), y=Axis(label="share"))))


def test_all_data_lie_inside_and_below_the_labels_of_marks():
    axes = draw(CHARTS["marks"]).axes[0]
    label = next(text for text in axes.texts if text.get_text() == "here")
    bottom = label.get_window_extent().y0
    points = axes.transData.transform(axes.lines[0].get_xydata())
    assert points[:, 1].max() < bottom
    assert axes.bbox.y0 <= points[:, 1].min()


def test_numbers_on_an_axis_are_short():
    parameters = Axis(label="parameters", is_log=True, floor=1.0)
    chart = lines((5_000, 2_000_000), y=parameters)
    assert {"10k", "100k", "1M"} <= set(texts(to_svg(draw(chart))))


def test_legend_names_all_series_in_their_order_outside_the_axes():
    figure = draw(bars())
    (legend,) = figure.legends
    figure.canvas.draw()
    assert [text.get_text() for text in legend.get_texts()] == ["Truth", "MoS"]
    assert legend.get_window_extent().y0 > figure.axes[0].bbox.y1


def test_a_description_has_all_points_or_the_ends_of_long_series():
    assert describe(CHARTS["lines"]) == (
        "excess, by d. softmax: 0.5 at 0, 0.1 at 1. moc: 0.4 at 0, 0.02 at 1."
    )
    assert "MoS: 0.4 at <b>, 0.3 at $&$." in describe(bars())
    assert "softmax: 1000 points from 0 at 0 to 999 at 999." in describe(lines(range(1000)))


def test_text_of_a_chart_is_taken_literally():
    assert {"<b>", "$&$"} <= set(texts(to_svg(draw(bars()))))


def test_png_has_the_size_that_was_asked_for(tmp_path):
    path = tmp_path / "chart.png"
    save_png(draw(CHARTS["lines"], CHARTS["lines"], size=(4, 3)), path, dpi=50)
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (400, 150)


def test_a_picture_that_fails_half_way_leaves_the_old_one(tmp_path, monkeypatch):
    path, figure = tmp_path / "chart.png", draw(CHARTS["lines"])
    path.write_bytes(b"old")

    def half(target, **_options):
        target.write_bytes(b"\x89PNG")
        raise OSError("the disk is full")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError, match="the disk is full"):
        save_png(figure, path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_drawing_leaves_no_trace_in_the_settings_of_matplotlib():
    import matplotlib

    before = dict(matplotlib.rcParams)
    to_svg(draw(CHARTS["lines"]))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("is_log", [False, True])
def test_bars_have_their_values_above_them_inside_the_axes(is_log):
    figure = draw(ranking(is_log=is_log))
    axes = figure.axes[0]
    assert {"33", "5.25", "2,800"} <= {text.get_text() for text in axes.texts}
    low, high = axes.get_ylim()
    assert low < 5.25 and high > 2800 * 1.1
    assert axes.get_yscale() == ("log" if is_log else "linear")


def test_one_series_of_bars_needs_no_legend_and_one_bar_can_stand_out():
    figure = draw(ranking())
    assert not figure.legends
    assert to_svg(figure).count("fill: var(--series-3)") == 1


@pytest.mark.parametrize("low", [1.01, 1.9, 10, 101, 350, 5100])
@pytest.mark.parametrize("ratio", [1, 1.3, 2, 4, 30])
def test_a_logarithmic_axis_has_two_numbers_at_least(low, ratio):
    figure = draw(lines((low, low * ratio), y=Axis(label="rank", is_log=True)))
    axes = figure.axes[0]
    ticks = [tick for tick in axes.get_yticks() if axes.get_ylim()[0] < tick < axes.get_ylim()[1]]
    assert 2 <= len(ticks) <= 10
