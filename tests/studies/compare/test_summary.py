"""From runs to rows: which seeds count, differences, costs, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest

from highrank.analysis.contrasts import analyse
from highrank.studies.compare.answer import answer, recommend
from highrank.studies.compare.summary import summarise_costs, summarise_regime

SEEDS = np.array([0.0, 0.02, -0.01, 0.005])


def losses(level, variant=0):
    """Of four seeds: what they share, and each run's own noise."""
    noise = 0.002 * np.random.default_rng(variant).standard_normal(4)
    return (level + SEEDS + noise - noise.mean()).tolist()


@pytest.fixture
def plan(make_plan):
    return make_plan("mos", "moc", seeds=(0, 1, 2, 3))


def test_rows_have_means_deviations_and_paired_differences(plan, make_records):
    runs = make_records(plan, losses(5.0), losses(4.8, 1), losses(5.001, 2))
    regime = summarise_regime(plan, runs, "tokens")
    control, mos, moc = regime.rows
    assert control.valid is None and control.valid_loss == pytest.approx(np.mean(losses(5.0)))
    assert mos.valid_deviation == pytest.approx(np.std(losses(4.8, 1), ddof=1))
    table = np.array([losses(5.0), losses(4.8, 1), losses(5.001, 2)])
    want = analyse(table, [(1, 0), (2, 0)])
    assert mos.valid == want.contrasts[0] and moc.valid == want.contrasts[1]
    assert (mos.valid.verdict, moc.valid.verdict) == ("better", "no difference seen")
    assert regime.best == mos.name and regime.best_control == control.name
    assert mos.gap == pytest.approx(0.2) and regime.detectable == want.detectable
    # The noise of a run is far below what seeds share.
    assert regime.error < 0.01 < control.valid_deviation


def test_only_seeds_in_which_all_were_measured_count(plan, make_records):
    runs = list(make_records(plan, losses(5.0), losses(4.8, 1), losses(5.0, 2)))
    runs[-1] = replace(runs[-1], state="unfinished", marks={})
    regime = summarise_regime(plan, runs, "tokens")
    assert regime.seeds == (0, 1, 2) and {row.num_seeds for row in regime.rows} == {3}
    # Of a comparison that has just begun: the seed with most runs, and no verdict.
    begun = [
        replace(run, marks={}) if run.seed or run.variant == "moc-k3-d4" else run for run in runs
    ]
    regime = summarise_regime(plan, begun, "tokens")
    assert regime.seeds == (0,) and [row.name for row in regime.rows] == ["softmax-d4", "mos-k3-d4"]
    assert regime.rows[1].valid is None and regime.error is None
    assert summarise_regime(plan, runs, "time") is None


def test_a_variant_that_diverged_is_left_out(plan, make_records):
    runs = list(make_records(plan, losses(5.0), losses(4.8, 1), losses(5.0, 2)))
    runs[5] = replace(runs[5], state="diverged", marks={})
    regime = summarise_regime(plan, runs, "tokens")
    assert [row.label for row in regime.rows] == ["control, K = 1", "MoC, K = 3"]
    assert regime.seeds == (0, 1, 2, 3)


def test_the_cache_has_a_row_beside_its_control(plan, make_records):
    runs = [
        replace(run, cache={"tokens": replace(run.marks["tokens"], valid_loss=4.7)})
        if run.variant == "softmax-d4"
        else run
        for run in make_records(plan, losses(5.0), losses(4.8, 1), losses(5.0, 2))
    ]
    regime = summarise_regime(plan, runs, "tokens")
    row = next(row for row in regime.rows if row.name.endswith("+cache"))
    assert row.label == "control + cache" and row.valid_loss == pytest.approx(4.7)
    assert row.valid.verdict == "better"
    assert regime.best == row.name


@pytest.mark.parametrize(
    ("level", "time", "verdict"),
    [(4.5, 2.0, "pays"), (4.9, 2.0, "does not pay"), (5.2, 0.5, "pays"), (5.0, 1.0, "cannot tell")],
)
def test_a_head_pays_if_it_wins_more_than_the_control_would_in_its_time(
    plan, make_records, level, time, verdict
):
    runs = make_records(
        plan, losses(5.0), losses(level, 1), losses(5.0, 2), cpu_seconds=[1.0, time, 1.0]
    )
    cost = summarise_costs(plan, runs, summarise_regime(plan, runs, "tokens"))[0]
    assert cost.ratio == pytest.approx(time) and cost.verdict == verdict
    mean = np.mean(losses(5.0))
    # The curves fall as the tokens to the power of -0.1.
    assert cost.needed == pytest.approx(mean * (1 - time**-0.1), rel=1e-6)


def say(plan, runs):
    regime = summarise_regime(plan, runs, "tokens")
    costs = summarise_costs(plan, runs, regime)
    return answer(plan, [regime], True, "a text"), recommend(plan, [regime], costs, 10_000)


def test_a_winner_is_named_with_its_interval(plan, make_records):
    text, choice = say(plan, make_records(plan, losses(5.0), losses(4.8, 1), losses(5.0, 2)))
    assert text.startswith("MoS, K = 3 (d = 4) beats the control on a text at equal tokens (1,200")
    assert "perplexity on valid is 18.1 % lower (95 % interval -18" in text
    assert "The bottleneck may matter here" in text and "--embedding 4 8." in text
    assert choice.variant == "mos-k3-d4" and choice.text == "MoS, K = 3, d = 4"
    assert "4 seeds" in choice.evidence and "1.00 times the control's" in choice.evidence


def test_no_difference_is_said_to_be_none_and_the_control_is_taken(plan, make_records):
    text, choice = say(plan, make_records(plan, losses(5.0), losses(4.9995, 1), losses(5.0, 2)))
    assert text.startswith("No difference seen on a text") and "would have been found" in text
    assert "nothing here says that the bottleneck limits this model" in text
    assert choice.variant == "softmax-d4" and "MoS, K = 3 (d = 4)" in choice.evidence


def test_a_softmax_that_wins_is_named(plan, make_records):
    text, choice = say(plan, make_records(plan, losses(5.0), losses(5.3, 1), losses(5.2, 2)))
    assert text.startswith("One softmax with d = 4 wins on a text")
    assert "22.1 % of the" in text
    assert choice.variant == "softmax-d4"


def test_a_larger_softmax_may_win_where_a_mixture_beats_the_smaller(variants, plan, make_records):
    found = variants("mos", sizes=(4, 8), is_equal=False)
    plan = replace(plan, variants=found, speeds=plan.speeds[:1] * 4)
    runs = make_records(plan, losses(5.0), losses(4.8, 1), losses(4.5, 2), losses(4.6, 3))
    text, choice = say(plan, runs)
    assert text.startswith("One softmax with d = 8 wins on a text")
    assert "With d = 4 the bottleneck matters" in text and "a softmax of d = 8 does without" in text
    assert choice.variant == "softmax-d8"


@pytest.mark.parametrize(
    ("levels", "matters"),
    [((5.0, 4.8, 4.8), False), ((5.0, 4.7, 4.8), True), ((5.0, 4.9, 4.8), False)],
)
def test_an_adaptive_mixture_must_beat_an_adaptive_softmax(
    make_plan, make_records, levels, matters
):
    plan = make_plan("adaptive-mos", "adaptive-softmax", seeds=(0, 1, 2, 3))
    runs = make_records(plan, *(losses(level, variant) for variant, level in enumerate(levels)))
    text, _ = say(plan, runs)
    assert ("The bottleneck may matter" in text) == matters
    mixture = summarise_regime(plan, runs, "tokens").rows[1]
    assert mixture.single_label == "Adaptive softmax" and mixture.valid.verdict == "better"
    table = np.array([losses(level, variant) for variant, level in enumerate(levels)])
    want = analyse(table, [(1, 2)], [(1, 0), (2, 0), (1, 2)])
    assert mixture.single == want.contrasts[0]


def test_an_adaptive_mixture_alone_says_nothing_of_the_bottleneck(make_plan, make_records):
    plan = make_plan("adaptive-mos", seeds=(0, 1, 2, 3))
    text, _ = say(plan, make_records(plan, losses(5.0), losses(4.7, 1)))
    assert text.startswith("Adaptive MoS, K = 3 (d = 4) beats the control")
    assert "bottleneck" not in text and "no mixture" not in text


def test_a_larger_softmax_is_named_also_where_a_mixture_of_its_size_is_level(
    variants, plan, make_records
):
    found = variants("mos", sizes=(4, 8), is_equal=False)
    plan = replace(plan, variants=found, speeds=plan.speeds[:1] * 4)
    runs = make_records(plan, losses(5.0), losses(4.9, 1), losses(4.5, 2), losses(4.4995, 3))
    text, choice = say(plan, runs)
    assert text.startswith("One softmax with d = 8 is enough on a text at equal tokens")
    assert "With d = 4 the bottleneck matters" in text and "a softmax of d = 8 does without" in text
    assert "d = 4 is too small here: one softmax with d = 8 beats every head with it" in text
    assert "its perplexity is 33.0 % lower" in text
    assert "the best of them, MoS, K = 3 (" in text
    assert choice.variant == "softmax-d8"
    regime = summarise_regime(plan, runs, "tokens")
    assert [(one.embedding_size, one.label) for one in regime.smaller] == [(4, "MoS, K = 3")]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((5.0, 4.4, 4.8, 4.7), "The bottleneck matters here: at equal tokens MoS, K = 3 (d = 4)"),
        (
            (5.0, 4.5, 4.8, 4.4),
            "The bottleneck may matter here: at equal tokens MoS, K = 3 (d = 8)",
        ),
    ],
)
def test_only_a_larger_softmax_that_loses_leaves_the_rank_as_the_reason(
    variants, plan, make_records, levels, expected
):
    found = variants("mos", sizes=(4, 8), is_equal=False)
    plan = replace(plan, variants=found, speeds=plan.speeds[:1] * 4)
    text, _ = say(
        plan, make_records(plan, *(losses(x, variant) for variant, x in enumerate(levels)))
    )
    assert expected in text


def test_a_gain_counts_only_as_the_table_has_it(plan, make_records):
    """Where the table has no difference, the sentence on the bottleneck has none either."""
    for level in np.linspace(4.99, 5.0, 21):
        runs = make_records(plan, losses(5.0), losses(level, 1), losses(5.0, 2))
        row = summarise_regime(plan, runs, "tokens").rows[1]
        assert row.single == row.valid


def test_a_pointer_beside_several_softmaxes_says_nothing_of_the_bottleneck(make_plan, make_records):
    plan = make_plan("pointer:3", seeds=(0, 1, 2, 3))
    text, _ = say(plan, make_records(plan, losses(5.0), losses(4.7, 1)))
    assert "beats the control" in text and "bottleneck" not in text


def test_one_seed_names_no_winner(make_plan, make_records):
    plan = make_plan("mos", seeds=(0,))
    text, choice = say(plan, make_records(plan, [5.0], [4.0]))
    assert text.startswith("One seed decides nothing") and choice is None
    assert answer(plan, [], False, "a text") == "Nothing has been measured on a text yet."
