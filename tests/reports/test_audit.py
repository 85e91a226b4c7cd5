"""The audit's page, table and picture, of made-up results of a plausible size."""

import html as html_text
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.analysis.divergence import Divergence
from highrank.environment import environment
from highrank.experiments.audit_result import (
    AuditResult,
    ComponentFacts,
    EffectiveRank,
    HeadFacts,
    MixtureFacts,
    ModelAudit,
    PreferredWord,
    RankAt,
    RankFacts,
    ReachabilityFacts,
    Takeover,
    TextFacts,
    UnreachableWord,
)
from highrank.reports.audit import audit_page, audit_picture
from highrank.reports.audit_table import audit_table
from highrank.reports.page import Figure, Grid, Table, render_page

EVIL = '<script>alert("1")</script>'
WHERE = replace(environment(), commit="0123456789ab")


EFFECTIVE = tuple(
    EffectiveRank(epsilon=10.0**-n, rank=rank) for n, rank in ((2, 3), (3, 20), (4, 40), (5, 60))
)


def rank_facts(values, bound=None, num_contexts=2000, num_words=1000, **options):
    comparable = sum(value > 3e-6 * values[0] for value in values)
    ceiling = min(num_contexts, num_words, bound or num_words)
    growth = tuple(
        RankAt(
            num_contexts=size,
            comparable=min(size, comparable),
            certified=min(size, len(values)),
            effective=EFFECTIVE,
        )
        for size in (num_contexts // 2, num_contexts)
    )
    facts = RankFacts(
        num_contexts=num_contexts,
        num_words=num_words,
        method="stable",
        method_reason="the matrix has 1,000 columns, which fit into memory",
        comparable=comparable,
        certified=len(values),
        unknown="",
        bound=bound,
        bound_reason="16 from the context, 1 from the normaliser" if bound else "5 are summed",
        ceiling=ceiling,
        ceiling_reason="bound" if bound else "words",
        effective=EFFECTIVE,
        stable=1.07,
        entropy=12.3,
        largest=values[0],
        noise_floor=1e-13 * values[0],
        singular_values=tuple(values),
        growth=growth,
    )
    return replace(facts, **options)


def component(k, mean_weight, word="the"):
    return ComponentFacts(
        mean_weight=mean_weight,
        largest_share=mean_weight / 2,
        is_dead=mean_weight < 0.002,
        preferred=tuple(PreferredWord(word=f"{word}{n}", prob=0.1, share=0.8) for n in range(10)),
        takeovers=(Takeover(text=f"as the days go by {k}", next_word=word, weight=0.9),) * 5,
    )


def mixture_facts(*weights, specialisation=0.31):
    total = len(weights)
    return MixtureFacts(
        num_contexts=2000,
        weight_entropy=0.8,
        use_entropy=1.2,
        specialisation=specialisation,
        pair_divergence=tuple(
            tuple(0.0 if i == j else 0.1 + 0.01 * abs(i - j) for j in range(total))
            for i in range(total)
        ),
        num_dead=sum(weight < 0.002 for weight in weights),
        components=tuple(component(k, weight) for k, weight in enumerate(weights)),
    )


def unreachable_word(word, index, **options):
    facts = UnreachableWord(
        word=word, index=index, is_exact=True, lead=-1e-9, between=("a", "b", "c")
    )
    return replace(facts, **options)


def model_audit(name, kind, rank, mixture=None, unreachable=(), **options):
    audit = ModelAudit(
        name=name,
        source="run",
        architecture="AWD-LSTM",
        num_parameters=2_345_678,
        head=HeadFacts(
            kind=kind,
            vocab_size=1000,
            context_size=16,
            num_components=1 if mixture is None else len(mixture.components),
            has_bias=False,
            softcap=None,
            scale=1.0,
            dtype="float32",
            is_tied=True,
        ),
        text=TextFacts(
            name="penn-treebank, test",
            sha256="ab" * 32,
            num_tokens=82_430,
            num_contexts=2000,
            nats=math.log(88.12),
            perplexity=88.12,
        ),
        rank=rank,
        divergence=Divergence(nats=4.763, standard_error=0.0123, num_contexts=2000, num_groups=20),
        reachability=ReachabilityFacts(
            states="all of them, in a box from −1 to 1 (tanh)",
            num_reachable=1000 - len(unreachable),
            num_tied=2,
            num_unreachable=len(unreachable),
            num_undecided=0,
            num_untried=0,
            unreachable=tuple(unreachable),
            elapsed=3.2,
        ),
        reachability_note="",
        mixture=mixture,
        elapsed=61.0,
    )
    return replace(audit, **options)


def audit_of(*models, **options):
    made = AuditResult(
        quick=False, num_contexts=2000, elapsed=130.0, environment=WHERE, models=models
    )
    return replace(made, **options)


def softmax(**options):
    values = [900.0, *(60.0 * math.exp(-i / 9) for i in range(16))]
    options.setdefault("unreachable", (unreachable_word("rare", 17),))
    return model_audit("runs/softmax-0", "softmax", rank_facts(values, bound=17), **options)


def mos(**options):
    values = [800.0, *(50.0 * math.exp(-i / 80) for i in range(999))]
    options.setdefault("mixture", mixture_facts(0.5, 0.3, 0.1999, 0.0001))
    options.setdefault("reachability", None)
    options.setdefault("reachability_note", "the head is a mixture")
    return model_audit("runs/mos-0", "mos", rank_facts(values), **options)


@pytest.fixture(scope="module")
def result():
    return audit_of(softmax(), mos())


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


def printed(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(audit_table(result))
    return console.file.getvalue().replace("\u00a0", " ")


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


def test_the_page_refers_to_nothing_outside_but_papers(page):
    html = render_page(page)
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', html)) == {
        "https://arxiv.org/abs/1711.03953",
        "https://aclanthology.org/2020.acl-main.198",
        "https://aclanthology.org/2022.acl-long.456",
    }
    assert html == render_page(
        audit_page(audit_of(softmax(), mos()), "highrank audit runs/softmax-0 runs/mos-0")
    )


def test_unreachable_words_are_listed_with_their_proofs():
    words = [
        unreachable_word("exactly", 3),
        unreachable_word("nearly", 4, is_exact=False, lead=2.5e-11),
        unreachable_word("forbidden", 5, between=()),
        *(unreachable_word(f"word{n}", n) for n in range(10, 110)),
    ]
    page = audit_page(audit_of(softmax(unreachable=words)))
    rows = table_of(page, "Unreachable words of").rows
    assert rows[0] == ("exactly", "3", "a · b · c", "exact")
    assert rows[1][-1] == "lead ≤ 3·10⁻¹¹"
    assert rows[2][2:] == ("–", "forbidden")
    text = text_of(page)
    assert all(f"word{n} " in text for n in range(10, 110))
    assert f"And {103 - len(rows)} more" in text


def test_words_and_names_are_escaped_wherever_they_stand():
    word = unreachable_word(EVIL, 0, between=(EVIL, "[red]x[/red]"))
    facts = mixture_facts(0.6, 0.4)
    evil = replace(facts, components=tuple(component(EVIL, 0.5, word=EVIL) for _ in range(2)))
    model = replace(softmax(unreachable=(word,), mixture=evil), name="[b]x", architecture=EVIL)
    html = render_page(audit_page(audit_of(model), command=EVIL))
    assert "<script" not in html and "[red]x[/red]" in html
    assert html.count("&lt;script&gt;") > 10
    assert "[b]x" in printed(audit_of(model))


def test_health_of_a_mixture_is_shown(page):
    rows = table_of(page, "Components of mos-0").rows
    assert rows[0] == ("1", "0.500", "25.0%", "2 (0.110)")
    assert rows[3][0] == "4, dead"
    pairs = table_of(page, "Divergence between components").rows
    assert pairs[1] == ("2", "0.11", "", "0.11", "0.12")
    assert "the0\u00a080%" in table_of(page, "prefers to say").rows[0][1]
    assert table_of(page, "takes over").rows[0] == ("1", "as the days go by 0", "the", "0.90")


def test_where_it_comes_from_is_named(page):
    text = text_of(page)
    for words in ("penn-treebank, test", "abababababab", "82,430", "0123456789ab", "2 min 10 s"):
        assert words in text
    assert "highrank audit runs/softmax-0 runs/mos-0" in text
    assert "quick" not in text
    assert "This was a quick audit" in text_of(audit_page(audit_of(softmax(), quick=True)))


@pytest.mark.parametrize("count", [1, 5])
def test_the_terminal_shows_every_model_in_80_columns(count):
    models = [replace(mos(), name=f"some/where/model-{n}-{'x' * 40}{n}") for n in range(count)]
    text = printed(audit_of(softmax(), *models))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("797") == count and text.count("4.763 ± 0.012") == count + 1
    assert "softmax-0" in text and "predicts little" in " ".join(text.split())


def test_a_result_with_holes_can_be_shown(tmp_path):
    rank = rank_facts(
        [5.0, 1.0], num_contexts=2, comparable=None, certified=None, unknown="it is hidden"
    )
    growth = tuple(replace(at, comparable=None, effective=()) for at in rank.growth)
    rank = replace(rank, effective=(), growth=growth, singular_values=(5.0,))
    alone = Divergence(nats=1.0, standard_error=None, num_contexts=2, num_groups=1)
    result = audit_of(replace(softmax(), rank=rank, divergence=alone))
    assert "Its rank is unknown: it is hidden." in text_of(audit_page(result))
    assert "1.000" in printed(result)
    audit_picture(result, tmp_path / "audit.png")


def test_the_picture_is_1200_pixels_wide(result, tmp_path):
    path = tmp_path / "audit.png"
    audit_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 675)
