"""The demo's page, picture and table say what the numbers say."""

import html as html_text
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

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
EVERYWHERE = "at d =", "at every d"


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
def html(result):
    return demo_page(result)


def text_of(html):
    """What a reader sees, without the charts."""
    html = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", html, flags=re.S)
    return " ".join(
        html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split()
    )


def tables(html):
    """For each table its rows, as (is highlighted, cells)."""
    return [
        [
            ("highlighted" in row, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row))
            for row in re.findall(r"<tr.*?</tr>", body, flags=re.S)
        ]
        for body in re.findall(r"<tbody>.*?</tbody>", html, flags=re.S)
    ]


def section(text, language):
    """The part of the text that is about one language."""
    titles = {"factorised": " The factorised language ", "senses": " The language of senses "}
    return text.split(titles[language])[1].split("All fits")[0]


def printed(result, width=80):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(demo_table(result))
    return captured.get()


def test_page_refers_to_nothing_but_the_paper(html):
    attributes = Attributes(html)
    assert attributes.named("src") == []
    assert attributes.named("href") == ["https://arxiv.org/abs/1711.03953"]
    assert all(link.startswith("#") for link in attributes.named("xlink:href"))


def test_ids_are_unique_over_the_page(html):
    ids = Attributes(html).named("id")
    assert ids
    assert len(ids) == len(set(ids))


def test_each_language_has_four_charts_with_a_description(html):
    grids = html.split('<div class="grid">')[1:]
    assert [len(re.findall('role="img"', grid)) for grid in grids] == [4, 4]
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.S):
        ElementTree.fromstring(svg.replace("&nbsp;", " "))
    descriptions = re.findall(r'role="img" aria-label="([^"]*)"', html)
    assert all("Softmax: " in text and "MoS: " in text for text in descriptions)


def test_the_tables_hold_all_fits(result, html):
    assert [len(rows) for rows in tables(html)[1:]] == [len(x.fits) for x in result.languages]


def test_the_page_is_made_the_same_twice(result, html):
    assert demo_page(result) == html


def test_where_one_softmax_suffices_is_marked_on_the_factorised_language_only(html):
    factorised, senses = html.replace("\u00a0", " ").split('<div class="grid">')[1:]
    assert "d = r − 1: one softmax suffices" in factorised
    assert "suffices" not in senses


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("matched", "Softmax")])
def test_words_and_highlights_follow_the_numbers(result_with, head, name):
    html = demo_page(result_with("senses", **{**EQUAL, head: 0.001}))
    finding = section(text_of(html), "senses").split("Equal parameters. ")[1]
    assert f"{name} has the lowest excess at every size." in finding
    assert finding.count("lowest excess") == 1
    assert {cells[0].split(",")[0] for best, cells in tables(html)[-1] if best} == {name}
    assert tables(html)[0][-1][1][-1] == name


def test_a_perfect_fit_can_be_shown(result_with):
    html = demo_page(result_with("factorised", **dict.fromkeys(EQUAL, 0.0)))
    text = section(text_of(html), "factorised")
    assert text.count("Softmax, MoC and MoS share the lowest excess at every") == 2


def test_without_matched_softmaxes_nothing_is_said_about_equal_parameters(result):
    languages = tuple(
        replace(language, fits=tuple(fit for fit in language.fits if fit.matches is None))
        for language in result.languages
    )
    alone = replace(result, languages=languages)
    text = text_of(demo_page(alone))
    assert "Equal parameters. Softmaxes" not in text and "Equal d. MoS" in text
    assert "equal parameters" not in answer(alone)


def test_the_page_opens_with_who_wins_at_equal_d_and_at_equal_parameters(result, html):
    assert text_of(html).split(" The bottleneck ")[0].endswith(answer(result))
    assert answer(result) == (
        "With d = 16 numbers per context, MoS has the lowest excess on both languages; at equal "
        "parameters, Softmax has the lowest excess on the factorised language, and MoS has the "
        "lowest excess on the language of senses."
    )


def test_seed_time_and_method_are_named(result, html):
    text = text_of(html)
    for words in ("seed 3", "81 s", "--seed 4", "nothing is sampled", "arXiv 1711.03953"):
        assert words in text
    assert "--quick" not in text
    assert "--quick" in text_of(demo_page(replace(result, quick=True)))


def test_the_picture_has_a_panel_for_each_language(result, tmp_path):
    path = tmp_path / "demo.png"
    demo_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 500)


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("moc", "MoC"), ("softmax", "Softmax")])
def test_who_wins_at_equal_size_follows_the_numbers(result_with, head, name):
    language = result_with("senses", **{**EQUAL, head: 0.001}).languages[1]
    groups = comparisons(language)["equal d"]
    assert verdict(groups, *EVERYWHERE) == f"{name} has the lowest excess at every d"


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("moc", "MoC"), ("matched", "Softmax")])
def test_who_wins_at_equal_parameters_follows_the_numbers(result_with, head, name):
    language = result_with("factorised", **{**EQUAL, head: 0.001}).languages[0]
    groups = comparisons(language)["equal parameters"]
    assert verdict(groups, *EVERYWHERE) == f"{name} has the lowest excess at every d"


def test_a_small_softmax_has_no_part_in_the_comparison_at_equal_parameters(result_with):
    language = result_with("senses", **{**EQUAL, "softmax": 0.0, "mos": 0.1}).languages[1]
    groups = comparisons(language)["equal parameters"]
    assert verdict(groups, *EVERYWHERE) == "MoS has the lowest excess at every d"


def test_a_verdict_names_the_sizes_of_each_winner(result):
    assert verdict(comparisons(result.languages[1])["equal parameters"], *EVERYWHERE) == (
        "Softmax has the lowest excess at d = 8, and "
        "MoS has the lowest excess at d = 16, 32, 48 and 63"
    )


def test_what_is_compared_at_equal_parameters_has_equal_parameters(result):
    for language in result.languages:
        for fits in comparisons(language)["equal parameters"].values():
            assert {fit.head for fit in fits} == {"softmax", "moc", "mos"}
            assert len({fit.num_parameters for fit in fits}) == 1


@pytest.mark.parametrize("moc, mos", [(0.1, 0.1005), (0.0, 9e-6)])
def test_heads_that_hardly_differ_are_level(result_with, moc, mos):
    result = result_with("senses", moc=moc, mos=mos, matched=0.2)
    fits = comparisons(result.languages[1])["equal parameters"][16]
    assert leader_names(fits) == "MoC and MoS"


def test_all_fits_are_readable_in_80_columns(result):
    lines = printed(result).splitlines()
    rows = [line for line in lines if "Softmax" in line or "MoC" in line or "MoS" in line]
    assert len(rows) == sum(len(language.fits) for language in result.languages)
    assert "…" not in "".join(lines)


def test_each_language_is_named_once_above_its_group(result):
    text = printed(result)
    assert text.count("factorised") == text.count("senses") == 1
    assert text.index("factorised") < text.index("senses")


def test_the_table_names_units_method_and_seed(result):
    text = " ".join(printed(result).split())
    for words in ("nats per token", "Nothing is sampled", "numerical rank", "Seed 3", "81 s"):
        assert words in text


def test_a_bound_that_is_not_known_is_a_dash(result):
    mos = next(line for line in printed(result).splitlines() if "MoS" in line)
    assert mos.split()[-1] == "–"
