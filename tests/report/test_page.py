"""Pages: escaped, self-contained, readable by everybody."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from highrank.report import page
from highrank.report.figure import DARK, LIGHT
from highrank.report.page import Column, Figure, Table, render

EVIL = '<script>alert("1")</script>'
FIGURE = Figure(svg="<svg><g/></svg>", title="T", caption="C", description="D")
TABLE = Table(
    title="T",
    caption="C",
    columns=(Column("a", False), Column("b")),
    rows=(("x", "1"), ("y", "2")),
    highlighted=frozenset({1}),
)


class Tags(HTMLParser):
    """All start tags of a page, in order, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag == name]


TEMPLATE = """{% extends "report/page.html.j2" %}
{% from "report/blocks.html.j2" import command, figure, folded, grid, table %}
{% block main %}
<section><h2>{{ heading }}</h2><p>{{ text }}</p>
{% for block in figures %}{{ figure(block) }}{% endfor %}
{{ grid(figures) }}
{% for block in tables %}{{ table(block) }}{% endfor %}
{% call folded("More") %}{{ command(text) }}{% endcall %}
</section>
{% endblock %}
"""


@pytest.fixture(autouse=True)
def _template(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("templates")
    (folder / "test.html.j2").write_text(TEMPLATE)
    monkeypatch.setattr(page, "TEMPLATES", [*page.TEMPLATES, folder])


def page_of(*, figures=(), tables=(), text="Text", **heading):
    found = {"title": "Title", "answer": "Answer", "footer": "Footer"} | heading
    values = {"heading": text, "text": text, "figures": figures, "tables": tables}
    return render("test.html.j2", **found, **values)


def test_text_is_escaped_wherever_it_comes_from():
    table = Table(title=EVIL, caption=EVIL, columns=(Column(EVIL),), rows=((EVIL,),))
    figure = Figure(svg="<svg/>", title=EVIL, caption=EVIL, description=EVIL)
    heading = dict.fromkeys(("title", "answer", "footer", "text"), EVIL)
    html = page_of(figures=[figure], tables=[table], verdict=EVIL, **heading)
    assert html.count("<script>") == 1 and f"<script>{page.SCRIPT.read_text()}</script>" in html


def test_the_only_script_that_may_run_is_the_one_that_copies_commands():
    html = page_of(text="highrank compare my.txt --budget 5m")
    digest = base64.b64encode(hashlib.sha256(page.SCRIPT.read_bytes()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    command = Tags(html).named("button")
    assert command == [{"type": "button", "class": "copy", "hidden": None}]
    assert '<span class="whole">--budget</span> <span class="whole">5m</span></code>' in html
    assert "<details>" in html and "<summary>More</summary>" in html


def test_a_verdict_stands_before_the_answer():
    assert 'class="verdict"' not in page_of()
    html = page_of(verdict="Yes.")
    assert html.index('<p class="verdict">Yes.</p>') < html.index('<p class="lead">Answer</p>')


def test_options_in_the_answer_are_not_broken():
    html = page_of(answer="Give it more <steps> (--max-steps, --budget).")
    whole = ['<span class="whole">--max-steps</span>', '<span class="whole">--budget</span>']
    assert f"more &lt;steps&gt; ({', '.join(whole)})." in html


def test_a_row_has_a_cell_for_each_column():
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        Table(title="", caption="", columns=(Column("a"), Column("b")), rows=(("1",),))


def test_a_page_can_be_read_by_everybody_and_forbids_the_network():
    html = page_of(figures=[FIGURE], tables=[TABLE])
    tags = Tags(html)
    assert FIGURE.svg in html
    assert tags.named("html") == [{"lang": "en"}] and len(tags.named("title")) == 1
    metas = {meta.get("name") or meta.get("http-equiv"): meta for meta in tags.named("meta")}
    assert metas["viewport"]["content"] == "width=device-width, initial-scale=1"
    assert "default-src 'none'" in metas["Content-Security-Policy"]["content"]
    assert [tag for tag, _ in tags.found if re.fullmatch("h[1-6]", tag)] == ["h1", "h2"]
    assert len(tags.named("figcaption")) == 3
    assert {"class": "chart", "role": "img", "aria-label": "D"} in tags.named("div")
    assert [header["scope"] for header in tags.named("th")] == ["col", "col", "row", "row"]
    assert [cell["class"] for cell in tags.named("td")] == ["number", "number"]
    assert any(div.get("class") == "scroll" for div in tags.named("div"))
    assert [row.get("class") for row in tags.named("tr")] == [None, None, "highlighted"]


def test_formulas_stay_on_one_line():
    html = page_of(text="at d = 16, 1 % less, d ≥ V − 1")
    assert "d\u00a0+\u00a02 at most" in page_of(text="d + 2 at most")
    assert "at d\u00a0=\u00a016, 1\u00a0% less, d\u00a0≥\u00a0V\u00a0−\u00a01" in html


def test_names_of_heads_are_broken_at_the_plus():
    name = "Adaptive softmax + pointer + ngram"
    table = Table(title="T", columns=(Column("head"),), rows=((name,),))
    assert "Adaptive\u00a0softmax + pointer + ngram</th>" in page_of(tables=[table])


def test_light_and_dark_define_the_same_colours():
    html = page_of()
    assert set(re.findall(r"var\(--([\w-]+)\)", html)) <= LIGHT.keys() == DARK.keys()
    for name in LIGHT:
        assert f"--{name}: {LIGHT[name]};" in html
        assert f"--{name}: {DARK[name]};" in html


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_what_is_behind_them(palette):
    for text in ("ink", "muted"):
        for behind in ("page", "surface", "accent"):
            assert contrast(palette[text], palette[behind]) >= 4.5
    for name in palette:
        if name == "truth" or name.startswith("series"):
            assert contrast(palette[name], palette["surface"]) >= 3


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
