"""The audit's page: what a reader finds on it, and what no token can do to it."""

import html as html_text
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from highrank.studies.audit.page import audit_page

EVIL = '<script>alert("1")</script>'


@pytest.fixture(scope="module")
def page(result):
    return audit_page(result, "highrank audit runs/softmax-0 runs/mos-0")


def plain(html):
    """What a reader sees of it."""
    html = re.sub(r"</?(span|strong|em)[^>]*>", "", html)
    text = html_text.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ")
    return " ".join(text.split())


def text_of(page):
    """What a reader sees, without the charts."""
    return plain(re.sub(r"<svg.*?</svg>|<style.*?</style>", "", page, flags=re.S))


def table_of(page, title):
    """Rows of cells, the titles of the columns first."""
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.S)
    found = next(f for f in figures if "<table" in f and title in plain(f.split("</strong>")[0]))
    rows = re.findall(r"<tr.*?</tr>", found, flags=re.S)
    return [tuple(map(plain, re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.S))) for row in rows]


def lead_of(page):
    return plain(re.search(r'<p class="lead">(.*?)</p>', page, flags=re.S)[1])


def test_the_page_opens_with_the_question_and_the_answer_in_one_sentence(page, make):
    question = "Does the bound of one softmax limit these models?"
    assert lead_of(page) == f"{question} Yes for softmax-0; no for mos-0."
    question = "Does the bound of one softmax limit this model?"
    answer = "Yes: rank 17 of at most 17 is used up;"
    assert lead_of(audit_page(make.result(make.softmax()))).startswith(f"{question} {answer}")


def test_six_models_stand_in_a_dense_table(make):
    assert 'class="labels dense"' in audit_page(make.result(*[make.softmax()] * 6))
    assert 'class="labels dense"' not in audit_page(make.result(*[make.softmax()] * 5))


def test_the_answer_of_each_model_stands_first_with_the_rule_and_what_it_does_not_mean(page):
    text = text_of(page)
    answer = text.split("The answer")[1].split("At a glance")[0]
    for words in ("softmax-0: Yes: rank", "mos-0: No: the 4", "The rule.", "does not mean"):
        assert words in answer
    assert "56.39±0.19" in answer


def test_every_row_of_the_key_table_is_in_the_glossary(page):
    terms = [plain(term) for term in re.findall(r"<dt>(.*?)</dt>", page)]
    rows = [row[0].split(", ε")[0] for row in table_of(page, "key numbers")[1:]]
    known = ("Head", "Tokens, V", "Context, d", "Components, K")
    assert {row for row in rows if row not in known} <= set(terms)


def test_the_key_table_has_a_column_for_each_model(page):
    titles, *rows = table_of(page, "key numbers")
    found = {label: tuple(cells) for label, *cells in rows}
    assert titles == ("", "softmax-0", "mos-0")
    assert found["Bound"] == ("17", "–")
    assert found["Numerical rank, float32"] == ("17", "797")
    assert found["Matrix"] == ("2,000×1,000",) * 2
    assert found["Effective rank, ε = 10⁻³"] == ("20", "20")
    assert found["Stable rank"] == ("1.07", "1.07")
    assert found["– shuffled contexts"] == ("450.50",) * 2
    assert found["I(component; token)"] == ("–", "0.3100")
    assert found["Divergence"] == ("4.763 ± 0.012",) * 2


def test_what_there_is_nothing_to_say_about_is_said_in_a_line(page):
    text = text_of(page)
    assert "mos-0: No bound: 5 are summed." in text
    assert "mos-0: The head is a mixture." in text


def test_charts_say_what_they_show_and_follow_the_theme(page):
    charts = re.findall(r'aria-label="([^"]*)">(<svg.*?</svg>)', page, flags=re.S)
    assert len(charts) == 6
    for description, svg in charts:
        ElementTree.fromstring(svg)
        assert description and not re.search(r": *#", svg)
        assert all("fill: var(--" in text for text in re.findall("<text[^>]*>", svg))
    spectrum = charts[0][1]
    assert "bound 17" in spectrum and "round-off of float32" in spectrum


def test_the_page_refers_to_nothing_outside_but_papers(page, make):
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page)) == {
        "https://arxiv.org/abs/1711.03953",
        "https://aclanthology.org/2020.acl-main.198",
        "https://aclanthology.org/2022.acl-long.456",
    }
    again = make.result(make.softmax(), make.mos())
    assert page == audit_page(again, "highrank audit runs/softmax-0 runs/mos-0")


def test_unargmaxable_tokens_are_listed_with_their_proofs(make):
    tokens = [
        make.unargmaxable_token("exactly", 3),
        make.unargmaxable_token("nearly", 4, is_exact=False, lead=2.5e-11),
        make.unargmaxable_token("forbidden", 5, between=()),
        *(make.unargmaxable_token(f"token{n}", n) for n in range(10, 110)),
    ]
    page = audit_page(make.result(make.softmax(tokens=tokens)))
    _, *rows = table_of(page, "Unargmaxable tokens of")
    assert rows[0] == ("exactly", "3", "a · b · c", "exact")
    assert rows[1][-1] == "lead ≤ 3·10⁻¹¹"
    assert rows[2][2:] == ("–", "forbidden")
    text = text_of(page)
    assert all(f"token{n} " in text for n in range(10, 110))
    assert f"And {103 - len(rows)} more" in text


def test_tokens_and_names_are_escaped_wherever_they_stand(make):
    token = make.unargmaxable_token(EVIL, 0, between=(EVIL, "[red]x[/red]"))
    report = make.mixture_report(0.6, 0.4)
    components = tuple(make.component(EVIL, 0.5, token=EVIL) for _ in range(2))
    evil = replace(report, components=components)
    model = replace(make.softmax(tokens=(token,), mixture=evil), name="[b]x", architecture=EVIL)
    html = audit_page(make.result(model), command=EVIL)
    assert "<script" not in html and "[red]x[/red]" in html
    assert html.count("&lt;script&gt;") > 10


def test_health_of_a_mixture_is_shown(page):
    _, *rows = table_of(page, "Components of mos-0")
    assert rows[0] == ("1", "0.500", "25.0%", "2 (0.1100)")
    assert rows[3][0] == "4, dead"
    _, *pairs = table_of(page, "Divergence between components")
    assert pairs[1] == ("2", "0.11", "", "0.11", "0.12")
    assert "the0 80%" in table_of(page, "Preferred tokens")[1][1]
    found = table_of(page, "Contexts with the largest weights")[1]
    assert found == ("1", "as the days go by 0", "the", "0.90")


def test_punctuation_stays_with_the_name_before_it(result):
    html = audit_page(result)
    assert '<span class="name">softmax-0;</span>' in html
    assert '<span class="name">mos-0.</span>' in html and "</span>:" not in html


def test_where_it_comes_from_is_named(page, make):
    text = text_of(page)
    for words in ("penn-treebank/test", "abababababab", "82,430", "0123456789ab", "2 min 10 s"):
        assert words in text
    assert "highrank audit runs/softmax-0 runs/mos-0" in text
    assert "quick" not in text
    assert "This was a quick audit" in text_of(audit_page(make.result(make.softmax(), quick=True)))


def test_a_result_with_holes_has_a_page(make):
    assert "A rank is unknown: it is hidden." in text_of(audit_page(make.with_holes()))


def test_tokens_for_which_there_was_no_time_are_counted(make):
    page = audit_page(make.hasty())
    rows = dict(table_of(page, "some hidden state makes the most likely"))
    assert rows["too close to call"] == "3" and rows["left for lack of time"] == "700"
    assert "too close to call: 3; left for lack of time: 700." in text_of(page)


def test_without_a_decided_model_there_is_no_table_of_tokens(make):
    text = text_of(audit_page(make.result(make.mos())))
    assert "mos-0: The head is a mixture." in text and "Tied:" not in text


def test_the_name_in_the_title_is_whole_and_smaller_where_it_is_long(make):
    page = audit_page(make.result(replace(make.softmax(), name="org/a-name-of-25-characters-o")))
    title = re.search(r"<h1>(.*?)</h1>", page, flags=re.S)[1]
    assert 'style="font-size: min(1em, 5.2vw)">a-name-of-25-characters-o</span>' in title


@pytest.mark.parametrize(
    ("name", "shown"), [("runs/caf\udcc3\udca9", "café"), ("runs/caf\udce9", r"caf\udce9")]
)
def test_names_beyond_ascii_are_written_under_any_locale(name, shown, make):
    page = audit_page(make.result(replace(make.softmax(), name=name)))
    assert shown in page.encode().decode()
