"""From runs to rows: which seeds count, differences, costs; and a whole comparison."""

import math
from dataclasses import replace

import numpy as np
import pytest

from highrank.analysis.contrasts import Verdict, analyse
from highrank.evaluation.check import check_word
from highrank.studies.compare.measure import summarise, summarise_costs, summarise_regime
from highrank.studies.compare.plan import Regime
from highrank.studies.compare.record import RunState
from highrank.studies.compare.schedule import train
from highrank.studies.compare.sentences import notes

LEVELS = (5.0, 4.8, 5.001)


@pytest.fixture
def plan(make_plan):
    return make_plan("mos", "moc", seeds=(0, 1, 2, 3))


def at_tokens(plan, runs):
    return summarise_regime(plan, runs, Regime.TOKENS)


def test_rows_have_means_deviations_and_paired_differences(plan, make_records, losses):
    regime = at_tokens(plan, make_records(plan, *LEVELS))
    control, mos, moc = regime.rows
    table = np.array([losses(level, index) for index, level in enumerate(LEVELS)])
    assert control.valid is None and control.valid_loss == pytest.approx(table[0].mean())
    assert mos.valid_deviation == pytest.approx(table[1].std(ddof=1))
    want = analyse(table, [(1, 0), (2, 0)])
    assert mos.valid == want.contrasts[0] and moc.valid == want.contrasts[1]
    assert (mos.valid.verdict, moc.valid.verdict) == (Verdict.BETTER, Verdict.NO_DIFFERENCE)
    assert regime.best == mos.name and regime.best_control == control.name
    assert mos.gap == pytest.approx(0.2) and regime.detectable == want.detectable
    # The noise of a run is far below what seeds share.
    assert regime.error < 0.01 < control.valid_deviation


def test_only_seeds_in_which_all_were_measured_count(plan, make_records):
    runs = list(make_records(plan, *LEVELS))
    runs[-1] = replace(runs[-1], state=RunState.UNFINISHED, marks={})
    regime = at_tokens(plan, runs)
    assert regime.seeds == (0, 1, 2) and {row.num_seeds for row in regime.rows} == {3}
    # A comparison that has just begun: the seed with most runs, and no verdict.
    begun = [run for run in runs if run.seed == 0 and run.variant != "moc-k3-d4"]
    regime = at_tokens(plan, begun)
    assert regime.seeds == (0,) and [row.name for row in regime.rows] == ["softmax-d4", "mos-k3-d4"]
    assert regime.rows[1].valid is None and regime.error is None
    assert summarise_regime(plan, runs, Regime.TIME) is None


def test_a_variant_that_diverged_is_left_out(plan, make_records):
    runs = list(make_records(plan, *LEVELS))
    runs[5] = replace(runs[5], state=RunState.DIVERGED, marks={})
    regime = at_tokens(plan, runs)
    assert [row.label for row in regime.rows] == ["control, K = 1", "MoC, K = 3"]
    assert regime.seeds == (0, 1, 2, 3)


def test_the_cache_has_a_row_beside_its_control(plan, make_records):
    runs = [
        replace(run, methods={"cache": {"tokens": replace(run.marks["tokens"], valid_loss=4.7)}})
        if run.variant == "softmax-d4"
        else run
        for run in make_records(plan, *LEVELS)
    ]
    regime = at_tokens(plan, runs)
    assert [row.name for row in regime.rows][:2] == ["softmax-d4", "softmax-d4+cache"]
    row = regime.rows[1]
    assert row.label == "control + cache" and row.valid_loss == pytest.approx(4.7)
    assert row.valid.verdict is Verdict.BETTER and regime.best == row.name


@pytest.mark.parametrize(
    ("level", "time", "verdict"),
    [(4.5, 2.0, "pays"), (4.9, 2.0, "does not pay"), (5.2, 0.5, "pays"), (5.0, 1.0, "cannot tell")],
)
def test_a_head_pays_if_it_wins_more_than_the_control_would_in_its_time(
    plan, make_records, losses, level, time, verdict
):
    runs = make_records(plan, 5.0, level, 5.0, cpu_seconds=[1.0, time, 1.0])
    cost = summarise_costs(plan, runs, at_tokens(plan, runs))[0]
    assert cost.ratio == pytest.approx(time) and cost.verdict == verdict
    # The curves fall as the tokens to the power of -0.1.
    assert cost.needed == pytest.approx(np.mean(losses(5.0)) * (1 - time**-0.1), rel=1e-6)


@pytest.mark.parametrize("levels", [(5.0, 4.8, 4.8), (5.0, 4.7, 4.8)])
def test_an_adaptive_mixture_is_compared_with_an_adaptive_softmax(
    make_plan, make_records, losses, levels
):
    plan = make_plan("adaptive-mos", "adaptive-softmax", seeds=(0, 1, 2, 3))
    mixture = at_tokens(plan, make_records(plan, *levels)).rows[1]
    assert mixture.single_label == "Adaptive softmax" and mixture.valid.verdict is Verdict.BETTER
    table = np.array([losses(level, index) for index, level in enumerate(levels)])
    want = analyse(table, [(1, 2)], [(1, 0), (2, 0), (1, 2)])
    assert mixture.single == want.contrasts[0]


def test_a_gain_counts_only_as_the_table_has_it(plan, make_records):
    """Where the table has no difference, the sentence on the bottleneck has none either."""
    for level in np.linspace(4.99, 5.0, 21):
        row = at_tokens(plan, make_records(plan, 5.0, level, 5.0)).rows[1]
        assert row.single == row.valid


def test_a_comparison_has_both_regimes_ranks_and_components(written, folder):
    plan = written("mos", "moc", cpu_seconds=0.05, cache=True)
    train(plan, folder)
    result = summarise(plan, folder)
    assert result.is_complete and [one.name for one in result.regimes] == ["tokens", "time"]
    assert [variant.rank_bound for variant in result.variants] == [6, None, 6]
    assert result.floor is not None and result.recommendation is not None
    alone = f"perplexity {math.exp(result.ngram.valid_loss):.4g} on valid"
    assert alone in "".join(notes(result)) and str(result.ngram.table) in "".join(notes(result))
    # Two regimes, two seeds; the control has two more by each method.
    by_method = [marks for run in result.runs for marks in run.methods.values()]
    assert sum(map(len, by_method)) == 2 * 4 and sum(len(r.marks) for r in result.runs) == 3 * 4
    names = [row.name for row in result.regimes[0].rows]
    assert names[:3] == ["softmax-d4", "softmax-d4+cache", "softmax-d4+temperature"]
    # With a cache and at a temperature; the other heads are distributions by their form.
    assert [check_word(variant.check) for variant in result.variants] == ["checked", "", ""]
    for variant in result.variants:
        assert variant.num_finished == 2 and variant.cpu_per_token > 0
        assert variant.analysis["effective_rank_1e-3"] >= 1
        assert (variant.analysis["specialisation"] is None) == (variant.label[:3] != "MoS")
