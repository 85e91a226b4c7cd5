"""Intervals and verdicts against scipy, and over thousands of simulated comparisons."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from highrank.studies.compare.statistics import (
    analyse,
    holm,
    incomplete_beta,
    is_homogeneous,
    residuals,
    t_quantile,
    two_sided,
)

NUM_COMPARISONS = 2_000


def simulated(num_cells, num_seeds, shift=0.0, seed=1):
    """Losses of comparisons in which the last cell is better by `shift` standard errors."""
    random = np.random.default_rng(seed)
    losses = random.standard_normal((NUM_COMPARISONS, num_cells, num_seeds))
    losses += 3 * random.standard_normal((NUM_COMPARISONS, 1, num_seeds))
    losses[:, -1] -= shift * np.sqrt(2 / num_seeds)
    return losses


def with_control(num_cells):
    return [(cell, 0) for cell in range(1, num_cells)]


@pytest.mark.parametrize("degrees", [1, 2, 3, 12, 40, 300])
def test_student_s_t_is_scipy_s(degrees):
    for probability in (0.001, 0.2, 0.8, 0.95, 0.975, 0.9999):
        want = scipy.stats.t.ppf(probability, degrees)
        assert t_quantile(probability, degrees) == pytest.approx(want, rel=1e-9)
    for statistic in (0.0, 0.3, 2.0, 15.0, 200.0):
        want = 2 * scipy.stats.t.sf(statistic, degrees)
        assert two_sided(statistic, degrees) == pytest.approx(want, rel=1e-9)
    with pytest.raises(ValueError, match="probability must be between 0 and 1, got 1"):
        t_quantile(1, degrees)


def test_the_incomplete_beta_function_is_scipy_s():
    for a, b, x in [(0.5, 0.5, 0.3), (6, 0.5, 0.99), (20, 3, 0.2), (1, 1, 0.7), (2, 5, 1.0)]:
        assert incomplete_beta(a, b, x) == pytest.approx(scipy.special.betainc(a, b, x), rel=1e-12)


def test_two_cells_are_a_paired_t_test():
    losses = np.random.default_rng(0).standard_normal((2, 5))
    found = analyse(losses, [(1, 0)])
    want = scipy.stats.ttest_rel(losses[1], losses[0])
    interval = want.confidence_interval(0.95)
    assert found.contrasts[0].p == pytest.approx(want.pvalue)
    assert (found.contrasts[0].low, found.contrasts[0].high) == pytest.approx(tuple(interval))
    assert found.degrees == 4 and found.is_pooled


def test_several_cells_are_corrected_as_dunnett_does():
    losses = simulated(4, 8, shift=2.5)[0]
    found = analyse(losses, with_control(4))
    # Without blocks, scipy's test has another error: compare the correction alone.
    error = np.sqrt((residuals(losses) ** 2).sum() / (3 * 7))
    assert found.error == pytest.approx(error) and found.degrees == 21
    statistic = (losses[3].mean() - losses[0].mean()) / (error * np.sqrt(2 / 8))
    # Tables of Dunnett's two-sided 5 % point for 3 treatments: 2.54 at 20 degrees, 2.51 at 24.
    factor = (found.contrasts[2].high - found.contrasts[2].difference) / (error * np.sqrt(2 / 8))
    assert factor == pytest.approx(2.535, abs=0.02)
    alone = 2 * scipy.stats.t.sf(abs(statistic), 21)
    assert alone < found.contrasts[2].p < 3 * alone + 1e-3


@pytest.mark.parametrize(("num_cells", "num_seeds"), [(2, 21), (3, 11)])
def test_a_tie_is_called_a_difference_in_about_5_percent(num_cells, num_seeds):
    found = [analyse(losses, [(1, 0)]) for losses in simulated(num_cells, num_seeds)]
    # Cells with one error look different in 1 %, and are then not pooled.
    assert np.mean([analysis.degrees >= 20 for analysis in found]) > 0.97
    wrong = np.mean([a.contrasts[0].verdict != "no difference seen" for a in found])
    assert 0.03 <= wrong <= 0.07


def test_a_difference_of_three_standard_errors_is_found():
    found = [analyse(losses, [(1, 0)]) for losses in simulated(2, 21, shift=3.0)]
    assert np.mean([a.contrasts[0].verdict == "better" for a in found]) >= 0.8
    covered = [a.contrasts[0].low <= -3 * np.sqrt(2 / 21) <= a.contrasts[0].high for a in found]
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize(("num_cells", "num_seeds"), [(7, 3), (5, 6), (11, 3)])
def test_false_wins_of_a_family_are_rare(num_cells, num_seeds):
    verdicts = np.array(
        [
            [contrast.verdict for contrast in analyse(losses, with_control(num_cells)).contrasts]
            for losses in simulated(num_cells, num_seeds)
        ]
    )
    assert (verdicts == "better").any(1).mean() <= 0.05
    # In either direction 5 %, and what 2,000 comparisons may be off by.
    assert (verdicts != "no difference seen").any(1).mean() <= 0.065


def test_the_smallest_difference_is_found_in_80_percent():
    size = analyse(simulated(7, 3)[0], with_control(7))
    factor = size.detectable / (size.error * np.sqrt(2 / 3))
    found = [analyse(losses, with_control(7)) for losses in simulated(7, 3, shift=factor)]
    assert np.mean([a.contrasts[-1].verdict == "better" for a in found]) == pytest.approx(
        0.8, abs=0.05
    )


def test_a_cell_with_another_error_is_not_pooled():
    losses = simulated(6, 5)[0]
    assert is_homogeneous(losses)
    losses[3] += 30 * np.random.default_rng(3).standard_normal(5)
    found = analyse(losses, with_control(6))
    assert not is_homogeneous(losses) and not found.is_pooled and found.degrees == 4
    pairs = zip(found.contrasts, with_control(6), strict=True)
    raw = [scipy.stats.ttest_rel(losses[a], losses[b]).pvalue for _, (a, b) in pairs]
    assert [contrast.p for contrast in found.contrasts] == pytest.approx(holm(raw))
    equal = [is_homogeneous(losses) for losses in simulated(6, 5)[:500]]
    assert np.mean(equal) == pytest.approx(0.99, abs=0.015)


def test_holm_s_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.5], size=10) == pytest.approx([0.1, 1.0])


def test_one_seed_decides_nothing():
    assert analyse(np.zeros((3, 1)), with_control(3)) is None
    assert analyse(np.zeros((1, 4)), []) is None


def test_equal_losses_are_no_difference():
    found = analyse(np.ones((3, 4)), with_control(3))
    assert {contrast.verdict for contrast in found.contrasts} == {"no difference seen"}
