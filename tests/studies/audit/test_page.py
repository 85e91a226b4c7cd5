"""The audit's page: its approved text, its charts, and what no token can do to it."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from highrank.studies.audit.charts import audit_picture
from highrank.studies.audit.page import audit_page

EVIL = '<script>alert("1")</script>'
COMMAND = "highrank audit runs/softmax-0 runs/mos-0"


@pytest.fixture(scope="module")
def page(result):
    return audit_page(result, COMMAND)


def test_pages_read_as_approved(page, make, approve):
    approve("page.txt", page)
    approve("page-with-holes.txt", audit_page(make.with_holes()))


def test_the_page_refers_to_nothing_outside_but_papers_and_is_repeatable(page, make):
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page)) == {
        "https://arxiv.org/abs/1711.03953",
        "https://arxiv.org/abs/2405.05417",
        "https://aclanthology.org/2020.acl-main.198",
        "https://aclanthology.org/2022.acl-long.456",
    }
    assert page == audit_page(make.result(make.softmax(fit=make.fit_facts()), make.mos()), COMMAND)


def test_charts_say_what_they_show_and_follow_the_theme(page):
    charts = re.findall(r'aria-label="([^"]*)">(<svg.*?</svg>)', page, flags=re.S)
    assert len(charts) == 6
    for description, svg in charts:
        ElementTree.fromstring(svg)
        assert description and not re.search(r": *#", svg)


def test_the_verdict_is_short_and_the_rest_is_folded(page, make):
    many = audit_page(make.result(*[replace(make.softmax(), name=f"a-{n}") for n in range(30)]))
    for html in (page, many, audit_page(make.result(make.softmax(fit=make.fit_facts())))):
        verdict = re.search('<p class="verdict">(.*?)</p>', html)[1]
        assert 3 <= len(verdict.split()) <= 12
        shown = re.sub("<details>.*?</details>", "", html, flags=re.S)
        assert "<svg" in shown and shown.count("<table") == 1


def test_five_models_stand_in_a_dense_table(make):
    assert 'class="labels dense"' in audit_page(make.result(*[make.softmax()] * 5))
    assert 'class="labels dense"' not in audit_page(make.result(*[make.softmax()] * 4))


def test_unargmaxable_tokens_are_listed_with_their_proofs(make):
    tokens = [
        make.unargmaxable_token("nearly", 4, is_exact=False, lead=2.5e-11),
        make.unargmaxable_token("forbidden", 5, between=()),
        *(make.unargmaxable_token(f"token{n}", n) for n in range(10, 110)),
    ]
    page = audit_page(make.result(make.softmax(tokens=tokens)))
    assert "lead ≤ 3·10⁻¹¹".replace(" ≤ ", "\u00a0≤\u00a0") in page and "And 52 more:" in page
    assert all(re.search(rf"\btoken{n}\b", page) for n in range(10, 110))


def test_tokens_and_names_are_escaped_wherever_they_stand(make):
    token = make.unargmaxable_token(EVIL, 0, between=(EVIL, "[red]x[/red]"))
    report = make.mixture_report(0.6, 0.4)
    components = tuple(make.component(EVIL, 0.5, token=EVIL) for _ in range(2))
    evil = replace(report, components=components)
    model = replace(make.softmax(tokens=(token,), mixture=evil), name="[b]x", architecture=EVIL)
    html = audit_page(make.result(model), command=EVIL)
    # The one script copies commands.
    assert html.count("<script") == 1 and "[red]x[/red]" in html
    assert html.count("&lt;script&gt;") > 10


def test_names_stay_whole_with_the_punctuation_after_them_and_are_smaller_where_long(page, make):
    assert '<span class="name">softmax-0:</span>' in page and "</span>:" not in page
    alone = audit_page(make.result(replace(make.softmax(), name="org/a-name-of-25-characters-o")))
    title = re.search(r"<h1>(.*?)</h1>", alone, flags=re.S)[1]
    assert 'style="font-size: min(1em, 5.2vw)">a-name-of-25-characters-o?</span>' in title


@pytest.mark.parametrize(
    ("name", "shown"), [("runs/caf\udcc3\udca9", "café"), ("runs/caf\udce9", r"caf\udce9")]
)
def test_names_beyond_ascii_are_written_under_any_locale(name, shown, make):
    page = audit_page(make.result(replace(make.softmax(), name=name)))
    assert shown in page.encode().decode()


def test_the_picture_is_1200_pixels_wide(result, make, tmp_path):
    for found in (result, make.with_holes()):
        audit_picture(found, tmp_path / "audit.png")
        header = (tmp_path / "audit.png").read_bytes()[:24]
        assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 675)
