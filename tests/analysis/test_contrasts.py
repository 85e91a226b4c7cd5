"""Intervals and verdicts against scipy, and over thousands of simulated comparisons."""

import numpy as np
import pytest
import scipy.stats

from highrank.analysis.contrasts import Verdict, analyse, holm, is_homogeneous, residuals

NUM_COMPARISONS = 2_000


def simulated(num_variants, num_seeds, shift=0.0, seed=1):
    """Losses of comparisons in which the last variant is better by `shift` standard errors."""
    random = np.random.default_rng(seed)
    losses = random.standard_normal((NUM_COMPARISONS, num_variants, num_seeds))
    losses += 3 * random.standard_normal((NUM_COMPARISONS, 1, num_seeds))
    losses[:, -1] -= shift * np.sqrt(2 / num_seeds)
    return losses


def with_baseline(num_variants):
    return [(variant, 0) for variant in range(1, num_variants)]


def test_two_variants_are_a_paired_t_test():
    losses = np.random.default_rng(0).standard_normal((2, 5))
    found = analyse(losses, [(1, 0)])
    want = scipy.stats.ttest_rel(losses[1], losses[0])
    interval = want.confidence_interval(0.95)
    assert found.contrasts[0].p == pytest.approx(want.pvalue)
    assert (found.contrasts[0].low, found.contrasts[0].high) == pytest.approx(tuple(interval))
    assert found.degrees == 4 and found.is_pooled


def test_several_variants_are_corrected_as_dunnett_does():
    losses = simulated(4, 8, shift=2.5)[0]
    found = analyse(losses, with_baseline(4))
    # Without blocks, scipy's test has another error: compare the correction alone.
    error = np.sqrt((residuals(losses) ** 2).sum() / (3 * 7))
    assert found.error == pytest.approx(error) and found.degrees == 21
    statistic = (losses[3].mean() - losses[0].mean()) / (error * np.sqrt(2 / 8))
    # Tables of Dunnett's two-sided 5 % point for 3 treatments: 2.54 at 20 degrees, 2.51 at 24.
    factor = (found.contrasts[2].high - found.contrasts[2].difference) / (error * np.sqrt(2 / 8))
    assert factor == pytest.approx(2.535, abs=0.02)
    alone = 2 * scipy.stats.t.sf(abs(statistic), 21)
    assert alone < found.contrasts[2].p < 3 * alone + 1e-3


@pytest.mark.parametrize(("num_variants", "num_seeds"), [(2, 21), (3, 11)])
def test_a_tie_is_called_a_difference_in_about_5_percent(num_variants, num_seeds):
    found = [analyse(losses, [(1, 0)]) for losses in simulated(num_variants, num_seeds)]
    # Variants with one error look different in 1 %, and are then not pooled.
    assert np.mean([analysis.degrees >= 20 for analysis in found]) > 0.97
    wrong = np.mean([a.contrasts[0].verdict != Verdict.NO_DIFFERENCE for a in found])
    assert 0.03 <= wrong <= 0.07


def test_a_difference_of_three_standard_errors_is_found():
    found = [analyse(losses, [(1, 0)]) for losses in simulated(2, 21, shift=3.0)]
    assert np.mean([a.contrasts[0].verdict == Verdict.BETTER for a in found]) >= 0.8
    covered = [a.contrasts[0].low <= -3 * np.sqrt(2 / 21) <= a.contrasts[0].high for a in found]
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize(("num_variants", "num_seeds"), [(7, 3), (5, 6), (11, 3)])
def test_false_wins_of_a_family_are_rare(num_variants, num_seeds):
    pairs = with_baseline(num_variants)
    found = [analyse(losses, pairs).contrasts for losses in simulated(num_variants, num_seeds)]
    verdicts = np.array([[contrast.verdict for contrast in family] for family in found])
    assert (verdicts == Verdict.BETTER).any(1).mean() <= 0.05
    # In either direction 5 %, and what 2,000 comparisons may be off by.
    assert (verdicts != Verdict.NO_DIFFERENCE).any(1).mean() <= 0.065


def test_the_smallest_difference_is_found_in_80_percent():
    size = analyse(simulated(7, 3)[0], with_baseline(7))
    factor = size.detectable / (size.error * np.sqrt(2 / 3))
    found = [analyse(losses, with_baseline(7)) for losses in simulated(7, 3, shift=factor)]
    assert np.mean([a.contrasts[-1].verdict == Verdict.BETTER for a in found]) == pytest.approx(
        0.8, abs=0.05
    )


def test_a_variant_with_another_error_is_not_pooled():
    losses = simulated(6, 5, shift=20)[0]
    assert is_homogeneous(losses)
    losses[3] += 30 * np.random.default_rng(3).standard_normal(5)
    found = analyse(losses, with_baseline(6))
    assert not is_homogeneous(losses) and not found.is_pooled and found.degrees == 4
    raw = scipy.stats.ttest_rel(losses[1:], losses[0], axis=1).pvalue.tolist()
    assert [contrast.p for contrast in found.contrasts] == pytest.approx(holm(raw))
    assert min(raw) < 0.01
    error = scipy.stats.sem(losses[1:] - losses[0], axis=1)
    widths = [contrast.high - contrast.low for contrast in found.contrasts]
    assert widths == pytest.approx(2 * scipy.stats.t.ppf(1 - 0.05 / 2 / 5, 4) * error)
    equal = [is_homogeneous(losses) for losses in simulated(6, 5)[:500]]
    assert np.mean(equal) == pytest.approx(0.99, abs=0.015)


def test_holm_s_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.5], size=10) == pytest.approx([0.1, 1.0])


def test_one_seed_decides_nothing():
    assert analyse(np.zeros((3, 1)), with_baseline(3)) is None
    assert analyse(np.zeros((1, 4)), []) is None


def test_equal_losses_are_no_difference_and_equal_differences_are_certain():
    found = analyse(np.ones((3, 4)), with_baseline(3))
    assert {contrast.verdict for contrast in found.contrasts} == {Verdict.NO_DIFFERENCE}
    (certain,) = analyse(np.array([[1.0, 2.0], [0.5, 1.5]]), [(1, 0)]).contrasts
    assert certain.verdict == Verdict.BETTER and certain.low == certain.high == -0.5
