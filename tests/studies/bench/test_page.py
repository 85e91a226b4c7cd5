"""The tables, the page and the charts of benchmarks, from made-up numbers."""

import html as html_text
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.environment import Environment
from highrank.report.figure import draw, to_svg
from highrank.studies.bench.baselines import GROWTH, SHAPES
from highrank.studies.bench.harness import Peak, Variant, summarise
from highrank.studies.bench.loss import LossBenchResult, MemoryGrowth, ShapeResult
from highrank.studies.bench.page import (
    loss_page,
    loss_picture,
    memory_chart,
    time_chart,
)
from highrank.studies.bench.spectrum import FULL, METHODS, AuditBenchResult, SpectrumError
from highrank.studies.bench.table import audit_table, loss_table

MIB = 2**20
TIMES = {
    "matmul": 2.0,
    "fused": 2.6,
    "chunked": 3.4,
    "composition": 3.9,
    "original": 5.2,
    "log-space": 7.8,
    "softmax": 0.9,
}
PEAKS = {
    "matmul": 64,
    "fused": 80,
    "chunked": 80,
    "composition": 40,
    "original": 1600,
    "log-space": 2800,
    "softmax": 90,
}
NOTES = {"original": "its epsilon changes the loss by -0.0007"}
WHERE = Environment(
    highrank="0.1.0",
    commit="0123456789ab",
    torch="2.13.0",
    python="3.11.7",
    threads=2,
    cpu="A fast one",
    platform="Linux",
    date="2026-11-16 03:16",
)
SECONDS = dict(zip(METHODS, (1200.0, 1310.0, 298.0, 4.81, 22.1), strict=True))
AUDIT_PEAKS = {"stable": 1700, "fast": 1650, "linear": 210, "log-probabilities": 96}
ERRORS = {
    "svd": SpectrumError(absolute=0.0, relative=0.0, floor=1.9e-14),
    "stable": SpectrumError(absolute=3.1e-15, relative=4.2e-10, floor=1.9e-14),
    "fast": SpectrumError(absolute=2.6e-10, relative=0.031, floor=2.1e-6),
    "linear": SpectrumError(absolute=4.4e-16, relative=7.7e-13, floor=3.0e-15),
}


def measurements(times, peaks, baselines, *, names, notes, failed):
    """Of made-up times and MiB, as if they had been measured; `failed` by name, with the reason."""
    variants = [
        Variant(name=n, prepare=lambda: None, note=notes.get(n, ""), skip=failed.get(n))
        for n in names
    ]
    times = {name: (1.1 * best, best) for name, best in times.items() if name not in failed}
    found = {name: Peak(peak * MIB) for name, peak in peaks.items() if name not in failed}
    return summarise(variants, baselines, values={}, times=times, peaks=found)


def shape_result(name="ptb", times=TIMES, peaks=PEAKS, **failed):
    baselines = ("matmul", "fused")
    rows = measurements(times, peaks, baselines, names=TIMES, notes=NOTES, failed=failed)
    return ShapeResult(shape=SHAPES[name], measurements=rows)


def bench_result(*shapes, growth=57, **options):
    made = MemoryGrowth(
        shapes=GROWTH,
        peak_bytes=(76 * MIB, (76 + growth) * MIB),
        growth=growth * MIB,
        gradient_growth=56 * MIB,
        allowed=88 * MIB,
        failure=None,
    )
    result = LossBenchResult(
        quick=False,
        rounds=5,
        chunk_bytes=None,
        seed=0,
        elapsed=731.0,
        environment=WHERE,
        shapes=shapes,
        memory_growth=made,
    )
    return replace(result, **options)


@pytest.fixture(scope="module")
def result():
    return bench_result(shape_result("ptb"), shape_result("wt2"))


def audit_result(**failed):
    notes = {"svd": "its memory is not measured"}
    return AuditBenchResult(
        size=FULL,
        rounds=1,
        elapsed=3021.0,
        environment=WHERE,
        measurements=measurements(
            SECONDS, AUDIT_PEAKS, ("svd",), names=METHODS, notes=notes, failed=failed
        ),
        errors=ERRORS,
    )


def text_of(page):
    """What a reader sees, without the charts."""
    html = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", page, flags=re.S)
    return " ".join(
        html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split()
    )


def highlighted(page):
    return re.findall(r'<tr class="highlighted">\s*<th scope="row">(.*?)</th>', page)


def descriptions(page):
    return re.findall(r'class="chart" role="img" aria-label="(.*?)"', page)


def printed(table):
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def row(result, name):
    lines = [line.split() for line in printed(audit_table(result)).splitlines()]
    return next(cells for cells in lines if cells[:1] == [name] and len(cells) == 7)


def test_the_terminal_shows_all_variants_in_80_columns_under_the_name_of_the_shape(result):
    text = printed(loss_table(result))
    rows = [line.split() for line in text.splitlines()]
    assert ["ptb", "matmul", "1.00", "0.77", "2", "64", "0.80"] in rows
    assert ["log-space", "3.90", "3.00", "7.8", "2,800", "35.00"] in rows
    assert rows.count(["composition", "1.95", "1.50", "3.9", "40", "0.50"]) == 2
    assert "…" not in text


def test_units_method_and_environment_are_named(result):
    for text in (" ".join(printed(loss_table(result)).split()), text_of(loss_page(result))):
        for words in ("0123456789ab", "torch 2.13.0", "2 threads", "A fast one", "2026-11-16"):
            assert words in text
        assert "best of 5" in text and "fresh process" in text and "MiB" in text
        assert "K = 15" in text and "V = 33,278" in text
        assert "its epsilon changes the loss by -0.0007" in text


def test_each_shape_has_two_charts_and_a_table(result):
    page = loss_page(result)
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    assert len(charts) == len(descriptions(page)) == 4
    for chart, description in zip(charts, descriptions(page), strict=True):
        ElementTree.fromstring(chart)
        assert "fused" in description
    assert page.count("<table") == 2 and page.count('<th scope="row">') == 14


def test_the_page_opens_with_the_fastest_and_highlights_it(result):
    page = loss_page(result)
    assert (
        "Fastest implementation of the mixture's loss: "
        "fused at ptb (1.30 × the matmul lower bound, 80 MiB of peak memory); "
        "fused at wt2 (1.30 × the matmul lower bound, 80 MiB of peak memory)."
    ) in text_of(page)
    assert "fused takes 1.30 × the time of the matmul lower bound, and 80 MiB" in text_of(page)
    assert "takes 0.35 of the time of fused" in text_of(page)
    assert highlighted(page) == ["fused", "fused"]


def test_the_page_names_another_implementation_where_that_is_the_fastest():
    page = loss_page(bench_result(shape_result(times={**TIMES, "composition": 2.1})))
    assert "composition at ptb (1.05 × the matmul lower bound, 40 MiB" in text_of(page)
    assert highlighted(page) == ["composition"]


def test_what_is_level_shares_the_first_place():
    page = loss_page(bench_result(shape_result(times={**TIMES, "chunked": 2.55})))
    opening = "fused and chunked at ptb (1.30 and 1.27 × the matmul lower bound, 80 and 80 MiB"
    assert opening in text_of(page)
    assert highlighted(page) == ["fused", "chunked"]


def test_times_below_the_lower_bound_are_a_warning(result):
    fast = bench_result(shape_result(times={**TIMES, "fused": 1.9}))
    for show in (lambda found: printed(loss_table(found)), lambda found: text_of(loss_page(found))):
        text = " ".join(show(fast).split())
        assert "At ptb, fused measured below the matmul lower bound" in text
        assert "measured below" not in " ".join(show(result).split())


@pytest.mark.parametrize("growth, is_exceeded", [(57, False), (89, True)])
def test_growth_of_memory_is_held_against_what_is_allowed(growth, is_exceeded):
    result = bench_result(shape_result(), growth=growth)
    for text in (" ".join(printed(loss_table(result)).split()), text_of(loss_page(result))):
        assert f"grows by {growth} MiB. Allowed are 88 MiB" in text
        assert ("exceeded" in text) == is_exceeded


def test_unknown_growth_has_a_reason():
    growth = bench_result().memory_growth
    unknown = replace(growth, peak_bytes=(None, None), growth=None, failure="killed")
    result = bench_result(shape_result(), memory_growth=unknown)
    assert "is unknown: killed." in text_of(loss_page(result))


def test_failed_and_skipped_variants_are_shown_with_their_reason():
    why = "needs torch 2.13 or newer, got 2.6.0"
    result = bench_result(shape_result(composition=why))
    text = printed(loss_table(result))
    assert ["composition", *"–––––"] in [line.split() for line in text.splitlines()]
    assert why in " ".join(text.split())
    page = loss_page(result)
    assert why in text_of(page)
    assert "composition" not in descriptions(page)[0]


def test_a_run_without_fused_or_memory_can_be_shown(tmp_path):
    result = bench_result(shape_result(peaks={}, fused="killed"))
    page = loss_page(result)
    assert "fused could not be measured: killed." in text_of(page)
    assert highlighted(page) == ["chunked"] and len(descriptions(page)) == 1
    loss_picture(result, tmp_path / "bench.png")


def test_a_run_of_which_nothing_is_known_can_be_shown():
    page = loss_page(bench_result(shape_result(times={}, peaks={})))
    assert "none could be measured at ptb." in text_of(page)
    assert highlighted(page) == descriptions(page) == []


def test_a_quick_run_is_named_one(result):
    assert "quick run" not in text_of(loss_page(result))
    assert "quick run" in text_of(loss_page(replace(result, quick=True)))


def test_charts_follow_the_page_and_ours_is_coloured(result):
    rows = result.shapes[0].measurements
    for chart in (time_chart(rows), memory_chart(rows)):
        figure = draw(chart)
        svg = to_svg(figure)
        assert not re.search(r": *#", svg)
        assert svg.count("fill: var(--series-3)") == 1
        assert figure.axes[0].get_yscale() == ("log" if chart.y.is_log else "linear")
        assert not figure.legends


def test_every_bar_has_its_value_inside_the_axes(result):
    axes = draw(memory_chart(result.shapes[0].measurements)).axes[0]
    assert {"64", "2,800"} <= {text.get_text() for text in axes.texts}
    low, high = axes.get_ylim()
    assert low < 40 and high > 2800


def test_the_picture_has_time_and_memory(result, tmp_path):
    path = tmp_path / "bench.png"
    loss_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 600)


def test_an_audit_has_time_memory_and_errors_of_each_method_in_80_columns():
    result = audit_result()
    assert " ".join(row(result, "stable")) == "stable 1,310 1.09 1,700 3e-15 4e-10 2e-14"
    assert " ".join(row(result, "fast")) == "fast 298 0.25 1,650 3e-10 3e-02 2e-06"
    assert row(result, "linear")[2] == "0.004"
    text = printed(audit_table(result))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_what_was_not_measured_of_an_audit_is_a_dash():
    result = audit_result(stable="out of memory")
    assert row(result, "svd")[3] == "–"
    assert row(result, "log-probabilities")[4:] == ["–", "–", "–"]
    assert row(result, "stable")[1:3] == ["–", "–"]
    assert "stable: out of memory." in printed(audit_table(result))


def test_size_rounds_notes_and_machine_of_an_audit_are_named():
    result = audit_result()
    text = " ".join(printed(audit_table(result)).split())
    for words in (
        "20,000 contexts × 10,000 tokens",
        "Seconds: once",
        "svd: its memory is not measured.",
        "1,500 contexts × 1,000 tokens",
        "0123456789ab",
        "50 min 21 s",
    ):
        assert words in text
    again = " ".join(printed(audit_table(replace(result, rounds=3))).split())
    assert "best of 3 alternating rounds" in again
