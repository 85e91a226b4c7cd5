"""The table, the page and the pictures of benchmarks, from made-up numbers."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from highrank.environment import Environment
from highrank.studies.bench.baselines import SHAPES
from highrank.studies.bench.harness import BenchResult, Group, Peak, Variant, summarise
from highrank.studies.bench.heads import CONTROL
from highrank.studies.bench.loss import LossBenchResult
from highrank.studies.bench.page import (
    bench_table,
    fastest,
    head_picture,
    loss_page,
    loss_picture,
    loss_table,
)

MIB = 2**20
NAMES = ("matmul", "fused", "chunked", "composition", "original", "log-space", "softmax")
SECONDS = dict(zip(NAMES, (2.0, 2.6, 3.4, 3.9, 5.2, 7.8, 0.9), strict=True))
PEAKS = dict(zip(NAMES, (64, 80, 80, 40, 1600, 2800, 90), strict=True))
COMMON = {
    "title": "Time and memory of the mixture's loss",
    "method": "One forward and backward pass, float32.",
    "rounds": 5,
    "elapsed": 731.0,
    "environment": Environment(**dict.fromkeys(Environment.__dataclass_fields__, "1")),
}
MEMORY = Peak(76 * MIB), Peak(133 * MIB)


def group(name="ptb", baselines=("matmul", "fused"), seconds=SECONDS, peaks=PEAKS, **failed):
    """Made-up seconds and MiB, as if they had been measured; `failed` by name, with the reason."""
    notes = {"original": "its epsilon changes the loss by -0.0007"}
    variants = [
        Variant(name=n, prepare=lambda: None, note=notes.get(n, ""), skip=failed.get(n))
        for n in (seconds or SECONDS)
    ]
    times = {n: (1.1 * best, best) for n, best in seconds.items() if n not in failed}
    found = {n: Peak(peak * MIB) for n, peak in peaks.items() if n not in failed}
    rows = summarise(variants, baselines, values={}, times=times, peaks=found)
    return Group(name=name, measurements=rows)


def loss_result(*groups, **options):
    shapes = {each.name: SHAPES[each.name] for each in groups}
    own = {"quick": False, "chunk_bytes": None, "shapes": shapes, "growth": MEMORY}
    return LossBenchResult(**COMMON, baselines=("matmul", "fused"), groups=groups, **own | options)


def highlighted(page):
    return re.findall(r'<tr class="highlighted">\s*<th scope="row">(.*?)</th>', page)


@pytest.fixture(scope="module")
def result():
    return loss_result(group("ptb"), group("wt2"))


def test_page_and_table_read_as_approved(result, approve):
    approve("page.txt", loss_page(result))
    text = approve("terminal.txt", loss_table(result))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_what_failed_is_below_the_bound_or_unknown_reads_as_approved(approve):
    """Composition was skipped, fused measured below the bound, memory is not known."""
    part = group(seconds={**SECONDS, "fused": 1.9}, peaks={}, composition="needs torch 2.13")
    unknown = Peak(76 * MIB), Peak(None, "killed")
    result = loss_result(part, quick=True, growth=unknown)
    grown = Peak(76 * MIB), Peak((76 + 89) * MIB)
    assert "That is exceeded." in loss_page(replace(result, growth=grown))
    approve("page-with-holes.txt", loss_page(result))
    approve("terminal-with-holes.txt", loss_table(result))


def test_numbers_of_every_size_are_short(approve):
    """The errors, tokens and seconds that further columns may have."""
    seconds = {"svd": 1200.0, "fast": 2.98, "linear": 4.81e-3}
    numbers = {
        "error": {"svd": 0.0, "fast": 3e-10, "linear": 0.031},
        "tokens": {"svd": 200_000, "fast": None, "linear": 45.0},
    }
    found = replace(group("", ("svd",), seconds, {}), numbers=numbers)
    result = BenchResult(**COMMON, baselines=("svd",), groups=(found,))
    approve("numbers.txt", bench_table(result))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["fused"]),
        ({"composition": 2.1}, ["composition"]),
        ({"chunked": 2.55}, ["fused", "chunked"]),
        ({"softmax": 0.1, "matmul": 0.1}, ["fused"]),
    ],
)
def test_the_fastest_implementation_and_what_is_level_with_it_are_highlighted(changes, names):
    part = group(seconds={**SECONDS, **changes})
    assert [m.name for m in fastest(part)] == names
    assert highlighted(loss_page(loss_result(part))) == names


def test_runs_without_fused_or_without_anything_can_be_shown(tmp_path):
    result = loss_result(group(peaks={}, fused="killed"))
    assert "fused could not be measured: killed." in loss_page(result)
    loss_picture(result, tmp_path / "bench.png")
    page = loss_page(loss_result(group(seconds={}, peaks={})))
    assert "none could be measured at ptb." in page and "<svg" not in page


def test_each_shape_has_two_charts_in_the_colours_of_the_page(result):
    charts = re.findall(r'aria-label="([^"]*)">(<svg.*?</svg>)', loss_page(result), flags=re.S)
    assert len(charts) == 4
    for description, svg in charts:
        ElementTree.fromstring(svg)
        assert "fused" in description and not re.search(r": *#", svg)
        assert svg.count("fill: var(--series-3)") == 1


def test_pictures_have_their_size(result, tmp_path):
    loss_picture(result, tmp_path / "loss.png")
    header = (tmp_path / "loss.png").read_bytes()[16:24]
    assert (int.from_bytes(header[:4]), int.from_bytes(header[4:])) == (1200, 600)
    seconds = {CONTROL: 1.0, "mos": 4.1}
    heads = group("E = 64, V = 10,000", (CONTROL,), seconds, {})
    heads = replace(heads, numbers={"multiplies": {CONTROL: 1.0, "mos": 4.0}})
    found = BenchResult(**COMMON, baselines=(CONTROL,), groups=(heads,))
    head_picture(found, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
