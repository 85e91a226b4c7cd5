"""Tokens by frequency, and the cost of having R of them in the first softmax."""

import numpy as np
import pytest

from highrank.heads.bases.frequency import best_frequent, costs, frequency_order


def test_frequent_tokens_come_first_and_ties_by_id():
    assert frequency_order([3, 9, 3, 0, 9], 5).tolist() == [1, 4, 0, 2, 3]
    assert frequency_order(None, 4).tolist() == [0, 1, 2, 3]


def test_counts_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token_counts must have 4 numbers, got 5"):
        frequency_order([1] * 5, 4)


@pytest.mark.parametrize("tail_cost", [1.0, 0.25])
def test_the_cost_counts_columns(tail_cost):
    counts = [10, 60, 0, 20, 10]
    got = costs(counts, 5, 3, tail_cost)
    missed = [0.4, 0.2, 0.1, 0.0]
    want = [3 * (R + 1) + (5 - R) * tail_cost * missed[R - 1] for R in range(1, 5)] + [3 * 5]
    np.testing.assert_allclose(got, np.array(want) / 5, rtol=1e-12)


def test_one_softmax_takes_the_cheapest_and_several_the_most_that_cost_no_more_than_one():
    counts = [2**rank for rank in reversed(range(12))]
    cheapest = costs(counts, 12, 1).argmin() + 1
    assert best_frequent(counts, 12, 1, 1.0) == cheapest < 12
    cost = costs(counts, 12, 2, 0.5)
    R = best_frequent(counts, 12, 2, 0.5)
    assert cost[R - 1] <= 1 and (cost[R:] > 1).all()
    # With nine softmaxes nothing is as cheap as one.
    assert best_frequent(counts, 12, 9, 1.0) == costs(counts, 12, 9).argmin() + 1


def test_without_counts_zipfs_law_is_assumed():
    zipf = [round(1e9 / rank) for rank in range(1, 101)]
    np.testing.assert_allclose(costs(None, 100, 2), costs(zipf, 100, 2), rtol=1e-6)
    np.testing.assert_allclose(costs([0] * 100, 100, 2), costs(None, 100, 2))


def test_a_mixture_over_frequent_tokens_costs_less_than_one_softmax():
    """As on Penn Treebank, whose counts follow Zipf's law."""
    cost = costs(None, 10_000, 8)
    R = best_frequent(None, 10_000, 8, 1.0)
    assert 500 < R < 2_000 and cost[R - 1] <= 1 < cost[R]
    assert cost.min() < costs(None, 10_000, 10).min() < 1
