import html as html_text
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.environment import Environment
from highrank.report.figure import to_svg
from highrank.report.page import Grid, Table, render_page
from highrank.studies.bench.charts import draw_bars, memory_chart, time_chart
from highrank.studies.bench.harness import Measurement, with_ratios
from highrank.studies.bench.loss import GROWTH, SHAPES, LossBenchResult, MemoryGrowth, ShapeResult
from highrank.studies.bench.page import loss_page, loss_picture
from highrank.studies.bench.table import loss_table

MIB = 2**20
TIMES = {
    "limit": 2.0,
    "fused": 2.6,
    "chunked": 3.4,
    "composition": 3.9,
    "original": 5.2,
    "log-space": 7.8,
    "softmax": 0.9,
}
PEAKS = {
    "limit": 64,
    "fused": 80,
    "chunked": 80,
    "composition": 40,
    "original": 1600,
    "log-space": 2800,
    "softmax": 90,
}


def measurement(name, best=None, peak=None, note="", failure=None):
    return Measurement(
        name=name,
        note=note,
        value=None,
        times=() if best is None else (best * 1.1, best),
        best=best,
        peak_bytes=None if peak is None else peak * MIB,
        time_ratios={},
        memory_ratios={},
        failure=failure,
    )


def shape_result(name="ptb", times=TIMES, peaks=PEAKS, **others):
    rows = {n: measurement(n, times.get(n), peaks.get(n)) for n in TIMES}
    rows["original"] = replace(rows["original"], note="its epsilon changes the loss by -0.0007")
    rows.update(others)
    measurements = with_ratios(list(rows.values()), ("limit", "fused"))
    return ShapeResult(shape=SHAPES[name], measurements=measurements)


def bench_result(*shapes, growth=57, **options):
    made = MemoryGrowth(
        shapes=GROWTH,
        peak_bytes=(76 * MIB, (76 + growth) * MIB),
        growth=growth * MIB,
        gradient_growth=56 * MIB,
        allowed=88 * MIB,
        failure=None,
    )
    where = Environment(
        highrank="0.1.0",
        commit="0123456789ab",
        torch="2.13.0",
        python="3.11.7",
        threads=2,
        cpu="A fast one",
        platform="Linux",
        date="2026-11-16 03:16",
    )
    result = LossBenchResult(
        quick=False,
        rounds=5,
        chunk_bytes=None,
        seed=0,
        elapsed=731.0,
        environment=where,
        shapes=shapes,
        memory_growth=made,
    )
    return replace(result, **options)


@pytest.fixture(scope="module")
def result():
    return bench_result(shape_result("ptb"), shape_result("wt2"))


def text_of(page):
    """What a reader sees, without the charts."""
    html = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", render_page(page), flags=re.S)
    return " ".join(
        html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split()
    )


def printed(result):
    console = Console(width=80, file=io.StringIO())
    console.print(loss_table(result))
    return console.file.getvalue()


def blocks(page, kind):
    return [block for part in page.sections for block in part.blocks if isinstance(block, kind)]


def test_the_terminal_shows_everyone_in_80_columns_under_the_name_of_the_shape(result):
    text = printed(result)
    rows = [line.split() for line in text.splitlines()]
    assert ["ptb", "limit", "1.00", "0.77", "2", "64", "0.80"] in rows
    assert ["log-space", "3.90", "3.00", "7.8", "2,800", "35.00"] in rows
    assert rows.count(["composition", "1.95", "1.50", "3.9", "40", "0.50"]) == 2
    assert "…" not in text


def test_units_method_and_environment_are_named(result):
    for text in (" ".join(printed(result).split()), text_of(loss_page(result))):
        for words in ("0123456789ab", "torch 2.13.0", "2 threads", "A fast one", "2026-11-16"):
            assert words in text
        assert "best of 5" in text and "fresh process" in text and "MiB" in text
        assert "K = 15" in text and "V = 33,278" in text
        assert "its epsilon changes the loss by -0.0007" in text


def test_each_shape_has_two_charts_and_a_table(result):
    page = loss_page(result)
    assert [len(grid.figures) for grid in blocks(page, Grid)] == [2, 2]
    for figure in (figure for grid in blocks(page, Grid) for figure in grid.figures):
        ElementTree.fromstring(figure.svg)
        assert "fused" in figure.description
    assert [len(table.rows) for table in blocks(page, Table)] == [7, 7]


def test_words_and_highlights_say_that_fused_is_the_fastest(result):
    page = loss_page(result)
    text = text_of(page)
    assert "fused is the fastest way to the loss; fused takes 1.30 × the time of the limit" in text
    assert "composition 1.50" in text and "log-space 3.00" in text
    assert "composition needs least, 0.50 × that; log-space needs most, 35.00 × that" in text
    assert "takes 0.35 of fused’s time" in text
    assert blocks(page, Table)[0].highlighted == {1}


def test_words_and_highlights_say_where_fused_is_not_the_fastest():
    slow = shape_result(times={**TIMES, "composition": 1.95})
    page = loss_page(bench_result(slow))
    assert "fused is not the fastest here: composition takes 0.75 of its time" in text_of(page)
    assert blocks(page, Table)[0].highlighted == {3}


def test_what_is_level_shares_the_first_place():
    level = shape_result(times={**TIMES, "chunked": 2.55}, peaks={**PEAKS, "composition": 79})
    text = text_of(loss_page(bench_result(level)))
    assert "fused and chunked are the fastest ways to the loss" in text
    assert "and no other way needs less" in text


@pytest.mark.parametrize("growth, is_exceeded", [(57, False), (89, True)])
def test_growth_of_memory_is_held_against_what_is_allowed(growth, is_exceeded):
    result = bench_result(shape_result(), growth=growth)
    for text in (" ".join(printed(result).split()), text_of(loss_page(result))):
        assert f"grows by {growth} MiB. Allowed are 88 MiB" in text
        assert ("exceeded" in text) == is_exceeded


def test_unknown_growth_has_a_reason():
    growth = bench_result().memory_growth
    unknown = replace(growth, peak_bytes=(None, None), growth=None, failure="killed")
    result = bench_result(shape_result(), memory_growth=unknown)
    assert "is unknown: killed." in text_of(loss_page(result))


def test_failed_and_skipped_contestants_are_shown_with_their_reason(tmp_path):
    why = "needs torch 2.13 or newer, got 2.6.0"
    part = shape_result(composition=measurement("composition", failure=why))
    result = bench_result(part)
    assert ["composition", *"–––––"] in [line.split() for line in printed(result).splitlines()]
    assert why in " ".join(printed(result).split())
    page = loss_page(result)
    assert why in text_of(page)
    assert "composition" not in blocks(page, Grid)[0].figures[0].description


def test_a_run_without_fused_or_memory_can_be_shown(tmp_path):
    part = shape_result(fused=measurement("fused", failure="killed"), peaks={})
    result = bench_result(part)
    text = text_of(loss_page(result))
    assert "fused could not be measured: killed." in text
    assert "Memory could not be compared." in text
    loss_picture(result, tmp_path / "bench.png")


def test_a_quick_run_says_so(result):
    assert "quick run" not in text_of(loss_page(result))
    assert "quick run" in text_of(loss_page(replace(result, quick=True)))


def test_charts_follow_the_page_and_ours_is_coloured(result):
    rows = result.shapes[0].measurements
    for chart in (time_chart(rows, "limit"), memory_chart(rows)):
        figure = draw_bars(chart)
        svg = to_svg(figure)
        assert not re.search(r": *#", svg)
        assert svg.count("fill: var(--series-3)") == 1
        assert figure.axes[0].get_yscale() == ("log" if chart.y.is_log else "linear")
        assert not figure.legends


def test_every_bar_has_its_value_inside_the_axes(result):
    axes = draw_bars(memory_chart(result.shapes[0].measurements)).axes[0]
    assert {"64", "2,800"} <= {text.get_text() for text in axes.texts}
    low, high = axes.get_ylim()
    assert low < 40 and high > 2800


def test_the_picture_has_time_and_memory(result, tmp_path):
    path = tmp_path / "bench.png"
    loss_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 600)
