"""Successive halving: who is dropped, what it saves, and that it resumes as it was."""

from dataclasses import replace

import pytest

from highrank.studies.compare.measure import summarise, train
from highrank.studies.compare.plan import divided
from highrank.studies.compare.search import active_at, survivors, with_dropped
from highrank.studies.compare.table import notes

HEADS = ("mos", "mos:2", "moc", "moc:2")


@pytest.fixture
def plan(make_plan):
    return make_plan(*HEADS, is_search=True)


def at_rung(plan, make_records, fraction, *losses):
    """Runs whose loss at the rung is known; the control's comes first."""
    runs = make_records(plan, *([loss, loss] for loss in losses))
    return [
        replace(run, state="unfinished", marks={}, rungs={fraction: run.marks["tokens"].valid_loss})
        for run in runs
    ]


def test_the_better_half_and_the_control_go_on(plan, make_records):
    assert plan.rungs == [0.25, 0.5]
    runs = at_rung(plan, make_records, 0.25, 9.0, 3.0, 1.0, 4.0, 2.0)
    assert survivors(plan, runs, range(5), 0.25) == [0, 2, 4]
    assert active_at(plan, runs, 0.25) == [0, 1, 2, 3, 4]
    assert active_at(plan, runs, 0.5) == [0, 2, 4]
    states = [run.state for run in with_dropped(plan, runs)]
    assert states == ["unfinished"] * 2 + ["dropped"] * 2 + ["unfinished"] * 2 + [
        "dropped",
        "dropped",
        "unfinished",
        "unfinished",
    ]


def test_nothing_is_dropped_before_all_are_there(plan, make_records):
    runs = at_rung(plan, make_records, 0.25, 9.0, 3.0, 1.0, 4.0, 2.0)
    runs[5] = replace(runs[5], rungs={})
    assert {run.state for run in with_dropped(plan, runs)} == {"unfinished"}
    diverged = [replace(run, state="diverged", rungs={}) if run is runs[5] else run for run in runs]
    assert active_at(plan, with_dropped(plan, diverged), 0.5) == [0, 1, 4]


def test_what_is_saved_makes_runs_longer(plan):
    # 5 cells for a quarter, 3 for the next, 2 for the rest.
    assert plan.share == pytest.approx((5 * 0.25 + 3 * 0.25 + 2 * 0.5) / 5)
    without = divided(replace(plan, is_search=False), 100.0, 10)
    found = divided(plan, 100.0, 10)
    assert found.num_tokens > 1.5 * without.num_tokens
    assert found.seconds == pytest.approx(100.0, rel=1e-3)
    assert replace(plan, is_search=False).rungs == [] and replace(plan, is_search=False).share == 1


def test_a_search_trains_few_to_the_end_and_says_so(written, folder):
    plan = written("mos", "moc", is_search=True)
    assert train(plan, folder) is None
    result = summarise(plan, folder)
    states = {run.cell: run.state for run in result.runs}
    assert sorted(states.values()) == ["dropped", "finished", "finished"] and result.is_complete
    assert states["softmax-d4"] == "finished"
    dropped = [run for run in result.runs if run.state == "dropped"]
    assert all(600 <= run.tokens < 700 for run in dropped)
    assert "the winner's number is optimistic" in result.answer
    assert any("dropped after 50 % of a run" in note for note in notes(result))
    before = [run.tokens for run in result.runs]
    assert train(plan, folder) is None
    assert [run.tokens for run in summarise(plan, folder).runs] == before
