"""The expected divergence of two predictions, against a loop over all pairs."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis import divergence as module
from highrank.analysis.divergence import expected_divergence
from highrank.analysis.log_probs import LogProbs, matrix_log_probs


def predictions(T, V, scale=2.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(T, V, generator=random).double()).log_softmax(-1)


def double_loop(log_prob):
    p = log_prob.exp().numpy()
    pairs = [(c, d) for c in range(len(p)) for d in range(len(p)) if c != d]
    return np.mean([scipy.stats.entropy(p[c], p[d]) for c, d in pairs])


@pytest.mark.parametrize("T, V", [(2, 3), (3, 50), (17, 9), (40, 30)])
@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
def test_the_divergence_equals_a_double_loop_to_twelve_digits(T, V, scale):
    log_prob = predictions(T, V, scale)
    found = expected_divergence(matrix_log_probs(log_prob))
    assert found.nats == pytest.approx(double_loop(log_prob), rel=1e-12)
    assert found.num_contexts == T


def test_contexts_that_nearly_agree_keep_their_digits():
    log_prob = (predictions(1, 50) + 1e-4 * torch.randn(20, 50).double()).log_softmax(-1)
    p, log_p = log_prob.exp().numpy(), log_prob.numpy()
    pairs = [(p[c] * (log_p[c] - log_p[d])).sum() for c in range(20) for d in range(20) if c != d]
    # The divergence is some 1e-8: round-off of 1e-16 in the rows' own sums is 1e-8 of it.
    found = expected_divergence(matrix_log_probs(log_prob))
    assert found.nats == pytest.approx(np.mean(pairs), rel=1e-7)
    same = expected_divergence(matrix_log_probs(log_prob[:1].repeat(20, 1)))
    assert (same.nats, same.standard_error) == (0.0, 0.0)


@given(cuts=st.lists(st.integers(0, 23), max_size=5), groups=st.integers(2, 30))
def test_neither_blocks_nor_groups_change_the_number(cuts, groups):
    log_prob = predictions(23, 7)
    bounds = [0, *sorted(cuts), 23]
    source = LogProbs(
        num_contexts=23,
        vocab_size=7,
        precision=torch.float64,
        make_blocks=lambda: [
            log_prob[a:b] for a, b in zip(bounds, bounds[1:], strict=False) if a < b
        ],
    )
    found = expected_divergence(source, groups)
    whole = expected_divergence(matrix_log_probs(log_prob))
    assert found.nats == pytest.approx(whole.nats, rel=1e-12)
    assert found.standard_error == pytest.approx(jackknife(log_prob, min(groups, 23)), rel=1e-9)


def jackknife(log_prob, groups):
    """By leaving out rows and looping over what remains."""
    T = len(log_prob)
    bounds = [T * g // groups for g in range(groups + 1)]
    estimates = [
        expected_divergence(matrix_log_probs(torch.cat((log_prob[:a], log_prob[b:])))).nats
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    return np.sqrt((groups - 1) * np.var(estimates))


def test_the_standard_error_is_the_spread_over_samples_of_contexts():
    found = [expected_divergence(matrix_log_probs(predictions(80, 6, seed=s))) for s in range(150)]
    spread = np.std([one.nats for one in found])
    assert np.mean([one.standard_error for one in found]) == pytest.approx(spread, rel=0.2)


def test_two_contexts_have_no_standard_error():
    assert expected_divergence(matrix_log_probs(predictions(2, 5))).standard_error is None


def test_memory_is_a_few_rows_whatever_the_number_of_contexts(watch):
    blocks, fractions = predictions(400, 30).split(5), []
    source = LogProbs(
        num_contexts=400, vocab_size=30, precision=torch.float64, make_blocks=lambda: blocks
    )
    with watch() as seen:
        expected_divergence(source, 4, on_progress=lambda at, _: fractions.append(at))
    assert max(seen.sizes) <= 5 * 30 and fractions[-1] == 1.0


@pytest.mark.parametrize(
    "log_prob, groups, message",
    [
        (predictions(1, 5), 20, "at least 2 contexts, got 1"),
        (predictions(4, 5), 1, "num_groups must be at least 2, got 1"),
        (predictions(4, 5) + 0.01, 20, f"sum to one within {module.TOLERANCE}, got a sum"),
    ],
)
def test_mistakes_are_named(log_prob, groups, message):
    with pytest.raises(ValueError, match=message):
        expected_divergence(matrix_log_probs(log_prob), groups)
