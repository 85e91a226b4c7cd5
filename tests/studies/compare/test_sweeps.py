"""What K and d do, as lines: one for each head, the control as its K = 1."""

import math
from dataclasses import replace

import pytest

from highrank.studies.compare.measure import summarise
from highrank.studies.compare.sweeps import sweep_charts


@pytest.fixture
def sweep(make_plan, variants, make_records, folder, monkeypatch):
    """The charts of a comparison with losses 5, 4.9, 4.8 … of its variants, in their order."""

    def make(by, *specs, sizes=(4,), **values):
        plan = make_plan("mos", seeds=(0, 1))
        found = variants(*specs, sizes=sizes, is_equal=False)
        plan = replace(plan, variants=found, speeds=plan.speeds[:1] * len(found))
        table = [[5 - 0.1 * i, 5.02 - 0.1 * i - 0.001 * (i % 2)] for i in range(len(found))]
        runs = make_records(plan, *table)
        analysis = {"effective_rank_1e-3": 7.0, "specialisation": None}
        runs = tuple(replace(run, analysis=analysis | values) for run in runs)
        monkeypatch.setattr("highrank.studies.compare.measure.read_runs", lambda *_: runs)
        result = summarise(plan, folder)
        return sweep_charts(result, result.regimes[-1], by)

    return make


def test_components_begin_with_the_control(sweep):
    loss, gap, rank, time = sweep("components", "mos:2", "mos:5", "moc:3")
    mos, moc = loss.series
    assert (mos.label, list(mos.x)) == ("MoS, d = 4", [1, 2, 5])
    assert (moc.label, list(moc.x)) == ("MoC, d = 4", [1, 3])
    middle = math.exp(4.91 - 0.0005)
    assert mos.y[1] == pytest.approx(middle)
    low, high = mos.intervals[1]
    assert low < middle < high and mos.intervals[0] == (mos.y[0], mos.y[0])
    assert [chart.y.label.split(",")[0] for chart in (gap, rank, time)] == [
        "gap: valid − train",
        "effective rank",
        "CPU ms per token",
    ]
    assert list(gap.series[0].y) == pytest.approx([0.2] * 3)
    assert list(rank.series[0].y) == [7.0] * 3 and loss.x.ticks == (1, 2, 3, 5)


def test_components_that_are_known_to_differ_are_drawn(sweep):
    assert len(sweep("components", "mos:2", "mos:5", specialisation=0.4)) == 5


def test_sizes_are_those_of_one_head(sweep):
    charts = sweep("size", "mos:2", sizes=(4, 8))
    assert [(line.label, list(line.x)) for line in charts[0].series] == [
        ("control, K = 1", [4, 8]),
        ("MoS, K = 2", [4, 8]),
    ]


@pytest.mark.parametrize("by", ["components", "size"])
def test_nothing_is_drawn_where_nothing_varies(sweep, by):
    assert sweep(by, "mos:2", "moc:2") == []
