"""The audit's page: what a reader finds on it, and what no word can do to it."""

import html as html_text
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from highrank.report.page import Figure, Grid, Table, render_page
from highrank.studies.audit.page import audit_page

EVIL = '<script>alert("1")</script>'


@pytest.fixture(scope="module")
def page(result):
    return audit_page(result, "highrank audit runs/softmax-0 runs/mos-0")


def text_of(page):
    """What a reader sees, without the charts."""
    html = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", render_page(page), flags=re.S)
    return " ".join(
        html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split()
    )


def blocks(page, kind):
    return [block for part in page.sections for block in part.blocks if isinstance(block, kind)]


def table_of(page, title):
    return next(table for table in blocks(page, Table) if title in table.title)


def figures(page):
    return blocks(page, Figure) + [f for grid in blocks(page, Grid) for f in grid.figures]


def test_the_verdict_stands_first_and_says_what_a_rank_is_not(page):
    text = text_of(page)
    assert page.sections[0].title == "The verdict"
    for words in ("softmax-0: Softmax with d = 16", "A high numerical rank alone predicts little"):
        assert words in text.split("At a glance")[0]
    assert "9,992" in text and "64.82" in text and "p = 0.62" in text


def test_the_key_table_has_a_column_for_each_model(page):
    table = table_of(page, "key numbers")
    rows = {label.replace("\u00a0", " "): tuple(cells) for label, *cells in table.rows}
    assert [column.title for column in table.columns] == ["", "softmax-0", "mos-0"]
    assert rows["Bound"] == ("17", "–")
    assert rows["Comparable rank"] == ("17", "797")
    assert rows["Matrix"] == ("2,000×1,000",) * 2
    assert rows["Effective, ε = 10⁻³"] == ("20", "20")
    assert rows["Divergence"] == ("4.763\u00a0±\u00a00.012",) * 2


def test_what_there_is_nothing_to_say_about_is_said_in_a_line(page):
    text = text_of(page)
    assert "mos-0: No bound: 5 are summed." in text
    assert "mos-0: The head is a mixture." in text
    assert "softmax-0: One softmax, no components" in text


def test_charts_say_what_they_show_and_follow_the_theme(page):
    assert len(figures(page)) == 6
    for figure in figures(page):
        ElementTree.fromstring(figure.svg)
        assert figure.description and not re.search(r": *#", figure.svg)
        assert all("fill: var(--" in text for text in re.findall("<text[^>]*>", figure.svg))
    spectrum = figures(page)[0].svg
    assert "bound 17" in spectrum and "round-off of float32" in spectrum


def test_the_page_refers_to_nothing_outside_but_papers(page, make):
    html = render_page(page)
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', html)) == {
        "https://arxiv.org/abs/1711.03953",
        "https://aclanthology.org/2020.acl-main.198",
        "https://aclanthology.org/2022.acl-long.456",
    }
    assert html == render_page(
        audit_page(
            make.result(make.softmax(), make.mos()), "highrank audit runs/softmax-0 runs/mos-0"
        )
    )


def test_unreachable_words_are_listed_with_their_proofs(make):
    words = [
        make.unreachable_word("exactly", 3),
        make.unreachable_word("nearly", 4, is_exact=False, lead=2.5e-11),
        make.unreachable_word("forbidden", 5, between=()),
        *(make.unreachable_word(f"word{n}", n) for n in range(10, 110)),
    ]
    page = audit_page(make.result(make.softmax(unreachable=words)))
    rows = table_of(page, "Unreachable words of").rows
    assert rows[0] == ("exactly", "3", "a · b · c", "exact")
    assert rows[1][-1] == "lead ≤ 3·10⁻¹¹"
    assert rows[2][2:] == ("–", "forbidden")
    text = text_of(page)
    assert all(f"word{n} " in text for n in range(10, 110))
    assert f"And {103 - len(rows)} more" in text


def test_words_and_names_are_escaped_wherever_they_stand(make):
    word = make.unreachable_word(EVIL, 0, between=(EVIL, "[red]x[/red]"))
    facts = make.mixture_facts(0.6, 0.4)
    evil = replace(facts, components=tuple(make.component(EVIL, 0.5, word=EVIL) for _ in range(2)))
    model = replace(make.softmax(unreachable=(word,), mixture=evil), name="[b]x", architecture=EVIL)
    html = render_page(audit_page(make.result(model), command=EVIL))
    assert "<script" not in html and "[red]x[/red]" in html
    assert html.count("&lt;script&gt;") > 10


def test_health_of_a_mixture_is_shown(page):
    rows = table_of(page, "Components of mos-0").rows
    assert rows[0] == ("1", "0.500", "25.0%", "2 (0.110)")
    assert rows[3][0] == "4, dead"
    pairs = table_of(page, "Divergence between components").rows
    assert pairs[1] == ("2", "0.11", "", "0.11", "0.12")
    assert "the0\u00a080%" in table_of(page, "prefers to say").rows[0][1]
    assert table_of(page, "takes over").rows[0] == ("1", "as the days go by 0", "the", "0.90")


def test_where_it_comes_from_is_named(page, make):
    text = text_of(page)
    for words in ("penn-treebank, test", "abababababab", "82,430", "0123456789ab", "2 min 10 s"):
        assert words in text
    assert "highrank audit runs/softmax-0 runs/mos-0" in text
    assert "quick" not in text
    assert "This was a quick audit" in text_of(audit_page(make.result(make.softmax(), quick=True)))


def test_a_result_with_holes_has_a_page(make):
    assert "Its rank is unknown: it is hidden." in text_of(audit_page(make.with_holes()))


def test_words_for_which_there_was_no_time_are_counted(make):
    page = audit_page(make.hasty())
    rows = dict(table_of(page, "some hidden state makes the most likely").rows)
    assert rows["too close to call"] == "3" and rows["left for lack of time"] == "700"
    assert "too close to call: 3; left for lack of time: 700." in text_of(page)
