"""The plan, the table, the page and its CSV, approve as text; and what K and d do, as lines."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.environment import Environment
from highrank.studies.compare.charts import (
    Sweep,
    cost_chart,
    learning_charts,
    rank_chart,
    sweep_charts,
)
from highrank.studies.compare.measure import summarise
from highrank.studies.compare.page import (
    compare_csv,
    compare_page,
    compare_table,
    plan_table,
    write_beside,
)
from highrank.studies.compare.record import RunState
from highrank.studies.compare.sentences import notes

WHERE = Environment(**dict.fromkeys(Environment.__dataclass_fields__, "1"))


@pytest.fixture
def summary(make_plan, make_records, monkeypatch):
    """A comparison with losses around 5, 4.9, 4.8 … of its variants, in their order."""

    def make(*specs, change=lambda run: run, **values):
        plan = make_plan(*specs, seeds=(0, 1, 2), **values)
        runs = make_records(plan, *(5 - 0.1 * i for i in range(len(plan.variants))))
        runs = tuple(map(change, runs))
        monkeypatch.setattr("highrank.studies.compare.measure.read_runs", lambda *_: runs)
        result = summarise(plan, "runs/compare-tiny-1")
        # Heads describe themselves elsewhere.
        variants = tuple(replace(one, description="A head.") for one in result.variants)
        choice = replace(result.recommendation, description="A head.")
        return replace(
            result, variants=variants, recommendation=choice, environment=WHERE, floor=3.2
        )

    return make


def printed(renderable):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def disturb(run):
    """A run as it may come: busy, disturbed, diverged, unfinished, with a cache."""
    run = replace(run, seconds=2.0, is_disturbed=run.variant == "mos-k3-d4" and run.seed == 1)
    if run.variant == "softmax-d4":
        run = replace(
            run, methods={"cache": {"tokens": replace(run.marks["tokens"], valid_loss=4.95)}}
        )
    if run.variant == "mos+pointer-k1-d4":
        run = replace(run, state=RunState.DIVERGED, marks={})
    is_last = run.variant == "moc-k3-d4" and run.seed == 2
    return replace(run, state=RunState.UNFINISHED, marks={}) if is_last else run


def test_table_and_page_read_as_approved(summary, approve, tmp_path):
    result = summary("mos", "moc", "mos+pointer", change=disturb, sizes=(4, 8))
    approve("table.txt", printed(compare_table(result)))
    page = compare_page(result, "highrank compare tiny")
    approve("page.txt", page)
    assert page.count("<svg") == 8 and "http-equiv" in page
    rows = list(csv.DictReader(io.StringIO(compare_csv(result))))
    # One regime, three seeds; a run without a mark has a line, too, and a cache has its own.
    assert len(rows) == 8 * 3 + 3
    assert {row["regime"] for row in rows} == {"tokens", "tokens with cache", ""}
    write_beside(result, tmp_path / "report.html")
    assert (tmp_path / "report.csv").read_text() == compare_csv(result)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("levels", [(5.0, 4.9995), (5.0, 4.8), (5.0, 5.2)])
def test_the_highlighted_row_is_the_recommended_one(make_plan, make_records, monkeypatch, levels):
    plan = make_plan("mos", seeds=(0, 1, 2, 3))
    runs = make_records(plan, *levels)
    monkeypatch.setattr("highrank.studies.compare.measure.read_runs", lambda *_: runs)
    result = summarise(plan, "runs/compare-tiny-1")
    page = compare_page(result)
    label = re.search(r'class="highlighted">\s*<th scope="row">(.*?)</th>', page)[1]
    assert page.count('class="highlighted"') == 1
    assert result.recommendation.text.startswith(label := label.replace("\u00a0", " "))
    assert label == ("MoS, K = 3" if levels[1] == 4.8 else "control, K = 1")


def test_charts_of_several_seeds_show_them(summary):
    result = summary("mos", "moc")
    for chart in learning_charts(result):
        assert all(
            low < y < high for s in chart.series for y, (low, high) in zip(s.y, s.band, strict=True)
        )
    analysis = {"effective_rank_1e-3": 7.0}
    ranked = replace(
        result, variants=tuple(replace(one, analysis=analysis) for one in result.variants)
    )
    points = [*rank_chart(ranked, ranked.regimes[-1]).series[1:], *cost_chart(result).series[1:]]
    assert len(points) == 4
    assert all(s.intervals[0][0] < s.y[0] < s.intervals[0][1] for s in points)


@pytest.mark.parametrize("noisy", ["mos-k3-d4", "softmax-d4"])
def test_a_noisy_variant_is_named(summary, noisy):
    def shake(run):
        mark = run.marks["tokens"]
        shift = 0.4 * (run.seed - 1) * (run.variant == noisy)
        marks = {"tokens": replace(mark, valid_loss=mark.valid_loss + shift)}
        return replace(run, marks=marks)

    result = summary("mos", "moc", "tied-softmax", change=shake)
    (note,) = [note for note in notes(result) if "differ" in note]
    row = result.regimes[-1].row(noisy)
    assert f"the seeds of {row.label} (d = 4) differ" in note
    assert ("without it" in note) == (row.valid is not None)
    assert result.regimes[-1].noisy.ratio > 50
    assert summary("mos", "moc", "tied-softmax").regimes[-1].noisy is None


def test_the_plan_reads_as_approved(make_plan, approve):
    approve("plan.txt", printed(plan_table(make_plan("mos", cpu_seconds=0.5))))


@pytest.fixture
def sweep(summary):
    def make(by, *specs, **values):
        analysis = {"effective_rank_1e-3": 7.0, "specialisation": 0.4}
        result = summary(*specs, change=lambda run: replace(run, analysis=analysis), **values)
        return sweep_charts(result, result.regimes[-1], by)

    return make


def test_components_begin_with_the_control(sweep):
    charts = sweep(Sweep.COMPONENTS, "mos:2", "mos:5", "moc:3")
    mos, moc = charts[0].series
    assert (mos.label, list(mos.x)) == ("MoS, d = 4", [1, 2, 5])
    assert (moc.label, list(moc.x)) == ("MoC, d = 4", [1, 3])
    low, high = mos.intervals[1]
    assert low < mos.y[1] == pytest.approx(math.sqrt(low * high))
    assert mos.intervals[0] == (mos.y[0], mos.y[0])
    assert math.log(mos.y[1]) == pytest.approx(4.9, abs=0.01) and charts[0].x.ticks == (1, 2, 3, 5)
    # The gap, the rank, milliseconds and I(component; token).
    values = [list(chart.series[0].y) for chart in charts[1:]]
    assert values == [pytest.approx([value] * 3) for value in (0.2, 7.0, 1e3 / 1_200, 0.4)]


def test_sizes_are_those_of_one_head(sweep):
    charts = sweep(Sweep.SIZE, "mos:2", sizes=(4, 8))
    assert [(line.label, list(line.x)) for line in charts[0].series] == [
        ("control, K = 1", [4, 8]),
        ("MoS, K = 2", [4, 8]),
    ]


@pytest.mark.parametrize("by", Sweep)
def test_nothing_is_drawn_where_nothing_varies(sweep, by):
    assert sweep(by, "mos:2", "moc:2") == []
