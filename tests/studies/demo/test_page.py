"""The demo's page, picture and table say what the numbers say."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from highrank import __version__
from highrank.studies.demo.page import (
    answer,
    comparisons,
    demo_page,
    demo_picture,
    demo_table,
    leader_names,
    verdict,
)

EQUAL = dict.fromkeys(("softmax", "moc", "mos", "matched"), 0.4)
PLACES = "at d =", "at every d"


@pytest.fixture(scope="module")
def html(result):
    return demo_page(result)


def test_page_and_table_read_as_approved(result, html, approve):
    approve("page.txt", html.replace(f"highrank {__version__}", "highrank"))
    text = approve("terminal.txt", demo_table(result))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_the_page_refers_to_nothing_but_the_paper_and_is_made_the_same_twice(result, html):
    assert "src=" not in html
    links = re.findall(r'(?:xlink:)?href="([^"]*)"', html)
    assert [link for link in links if not link.startswith("#")] == [
        "https://arxiv.org/abs/1711.03953"
    ]
    ids = re.findall(r' id="([^"]*)"', html)
    assert ids and len(ids) == len(set(ids))
    assert demo_page(result) == html


def test_each_language_has_four_charts_with_a_description(html):
    grids = html.replace("\u00a0", " ").split('<div class="grid">')[1:]
    assert [len(re.findall('role="img"', grid)) for grid in grids] == [4, 4]
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.S):
        ElementTree.fromstring(svg)
    descriptions = re.findall(r'role="img" aria-label="([^"]*)"', html)
    assert all("Softmax: " in text and "MoS: " in text for text in descriptions)
    factorised, senses = grids
    assert "d = r − 1: one softmax suffices" in factorised and "suffices" not in senses


def test_a_perfect_fit_and_one_without_matched_softmaxes_can_be_shown(result, result_with):
    perfect = demo_page(result_with("factorised", **dict.fromkeys(EQUAL, 0.0)))
    assert perfect.count("Softmax, MoC and MoS share the lowest excess at every") == 2
    languages = tuple(
        replace(language, fits=tuple(fit for fit in language.fits if fit.matches is None))
        for language in result.languages
    )
    alone = replace(result, languages=languages, quick=True)
    html = demo_page(alone)
    assert "<strong>Equal parameters.</strong>" not in html and "This was a quick run" in html
    assert "equal parameters" not in answer(alone)


@pytest.mark.parametrize("kind", ["equal d", "equal parameters"])
@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("moc", "MoC"), ("softmax", "Softmax")])
def test_who_wins_follows_the_numbers(result_with, kind, head, name):
    winner = "matched" if (kind, head) == ("equal parameters", "softmax") else head
    language = result_with("senses", **{**EQUAL, winner: 0.001}).languages[1]
    assert verdict(comparisons(language)[kind], *PLACES) == (
        f"{name} has the lowest excess at every d"
    )


def test_a_small_softmax_has_no_part_in_the_comparison_at_equal_parameters(result_with):
    language = result_with("senses", **{**EQUAL, "softmax": 0.0, "mos": 0.1}).languages[1]
    groups = comparisons(language)["equal parameters"]
    assert verdict(groups, *PLACES) == "MoS has the lowest excess at every d"
    for fits in groups.values():
        assert {fit.head for fit in fits} == {"softmax", "moc", "mos"}
        sizes = [fit.num_parameters for fit in fits]
        assert max(sizes) < 1.01 * min(sizes)


@pytest.mark.parametrize("moc, mos", [(0.1, 0.1005), (0.0, 9e-6)])
def test_heads_that_hardly_differ_are_level(result_with, moc, mos):
    result = result_with("senses", moc=moc, mos=mos, matched=0.2)
    fits = comparisons(result.languages[1])["equal parameters"][16]
    assert leader_names(fits) == "MoC and MoS"


def test_the_picture_has_a_panel_for_each_language(result, tmp_path):
    path = tmp_path / "demo.png"
    demo_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 555)
