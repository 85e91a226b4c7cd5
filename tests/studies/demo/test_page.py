import html as html_text
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from highrank.report.page import Grid, Table, render_page
from highrank.studies.demo.page import demo_page, demo_picture


class Attributes(HTMLParser):
    """All attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += attrs

    def named(self, name: str) -> list[str | None]:
        return [value for key, value in self.found if key == name]


@pytest.fixture(scope="module")
def page(result):
    return demo_page(result)


@pytest.fixture(scope="module")
def html(page):
    return render_page(page)


def blocks(page, kind):
    return [block for part in page.sections for block in part.blocks if isinstance(block, kind)]


def text_of(page):
    """What a reader sees, without the charts."""
    html = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", render_page(page), flags=re.S)
    return " ".join(
        html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split()
    )


def section(text, language):
    """The part of the text that speaks of one language."""
    titles = {"factorised": "A factorised language", "senses": "A language of senses"}
    return text.split(titles[language])[1].split("All fits")[0]


def test_page_refers_to_nothing_but_the_paper(html):
    attributes = Attributes(html)
    assert attributes.named("src") == []
    assert attributes.named("href") == ["https://arxiv.org/abs/1711.03953"]
    assert all(link.startswith("#") for link in attributes.named("xlink:href"))


def test_ids_are_unique_over_the_page(html):
    ids = Attributes(html).named("id")
    assert ids
    assert len(ids) == len(set(ids))


def test_each_language_has_four_charts_that_say_what_they_show(page):
    grids = blocks(page, Grid)
    assert [len(grid.figures) for grid in grids] == [4, 4]
    for figure in (figure for grid in grids for figure in grid.figures):
        ElementTree.fromstring(figure.svg)
        assert "Softmax" in figure.description and "MoS" in figure.description


def test_the_tables_hold_all_fits(result, page):
    tables = blocks(page, Table)[1:]
    assert [len(table.rows) for table in tables] == [len(x.fits) for x in result.languages]


def test_the_page_is_made_the_same_twice(result, html):
    assert render_page(demo_page(result)) == html


def test_where_one_softmax_suffices_is_marked_on_the_factorised_language_only(page):
    factorised, senses = (grid.figures[0].svg for grid in blocks(page, Grid))
    assert "d = r − 1: one softmax suffices" in factorised
    assert "suffices" not in senses


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("matched", "Softmax")])
def test_words_and_highlights_follow_the_numbers(result_with, head, name):
    excess = {"moc": 0.4, "mos": 0.4, "matched": 0.4, head: 0.001}
    page = demo_page(result_with("senses", **excess))
    finding = section(text_of(page), "senses").split("Equal parameters. ")[1]
    assert f"{name} has the lowest excess at every size." in finding
    assert finding.count("lowest excess") == 1
    table = blocks(page, Table)[-1]
    rows = {table.rows[index][0].split(",")[0] for index in table.highlighted}
    assert rows == {name}
    assert [row[-1] for row in blocks(page, Table)[0].rows][-1] == name


def test_a_perfect_fit_can_be_shown(result_with):
    zero = dict.fromkeys(("softmax", "moc", "mos", "matched"), 0.0)
    text = section(text_of(demo_page(result_with("factorised", **zero))), "factorised")
    assert text.count("Softmax, MoC and MoS share the lowest excess at every size.") == 2


def test_without_matched_softmaxes_nothing_is_said_about_equal_parameters(result):
    languages = tuple(
        replace(language, fits=tuple(fit for fit in language.fits if fit.matches is None))
        for language in result.languages
    )
    text = text_of(demo_page(replace(result, languages=languages)))
    assert "Equal parameters. The mixtures" not in text
    assert "Equal d. MoS" in text


def test_seed_time_and_method_are_named(result, page):
    text = text_of(page)
    for words in ("seed 3", "81 s", "--seed 4", "no text is sampled", "arXiv 1711.03953"):
        assert words in text
    assert "--quick" not in text
    assert "--quick" in text_of(demo_page(replace(result, quick=True)))


def test_the_picture_has_a_panel_for_each_language(result, tmp_path):
    path = tmp_path / "demo.png"
    demo_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 500)
