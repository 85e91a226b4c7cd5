"""Adaptive MoS: an adaptive softmax with equal contexts, its rank, its cost, its start."""

import pytest
import torch

from highrank.heads import AdaptiveMixtureOfSoftmaxes, AdaptiveSoftmax

EXACT = {"rtol": 1e-10, "atol": 1e-10}
COUNTS = [(5 * token) % 23 for token in range(23)]


def test_with_one_component_auto_is_as_cheap_as_an_adaptive_softmax():
    one = AdaptiveMixtureOfSoftmaxes(6, 23, 1, 4, token_counts=COUNTS)
    assert one.cutoffs == AdaptiveSoftmax(6, 23, 4, token_counts=COUNTS).cutoffs


@pytest.mark.parametrize("mix_first_tail", [False, True])
def test_with_equal_contexts_it_is_an_adaptive_softmax(hidden, mix_first_tail):
    head = AdaptiveMixtureOfSoftmaxes(
        6, 23, 3, 4, frequent=6, cutoffs=(12,), mix_first_tail=mix_first_tail, start_noise=0.0
    ).double()
    softmax = AdaptiveSoftmax(6, 23, 4, frequent=6, cutoffs=(12,)).double()
    state = {n: x for n, x in head.state_dict().items() if n in softmax.state_dict()}
    sizes = {name: len(x) for name, x in softmax.state_dict().items()}
    softmax.load_state_dict({name: x[: sizes[name]] for name, x in state.items()})
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden), **EXACT)


@pytest.mark.parametrize("bias", [True, False])
def test_its_rank_is_that_of_a_column_per_frequent_token(generic, bias):
    head = generic(
        AdaptiveMixtureOfSoftmaxes(16, 90, 8, 4, frequent=30, cutoffs=(60,), bias=bias), 0.7
    )
    log_prob = head.log_prob(torch.randn(100, 16).double())
    # Frequent tokens, the contexts of both tails, a class and a normaliser of each, the bias.
    assert head.rank_bound == 30 + 2 * 4 + 2 + bias
    assert torch.linalg.matrix_rank(log_prob) == head.rank_bound
    softmax = AdaptiveSoftmax(16, 90, 4, frequent=30, cutoffs=(60,), bias=bias)
    assert head.rank_bound > softmax.rank_bound


def test_a_mixture_in_the_first_tail_has_its_columns_too(generic):
    options = {"frequent": 30, "cutoffs": (60,), "mix_first_tail": True}
    head = generic(AdaptiveMixtureOfSoftmaxes(16, 90, 8, 4, **options), 0.7)
    log_prob = head.log_prob(torch.randn(100, 16).double())
    assert head.rank_bound == torch.linalg.matrix_rank(log_prob) == 60 + 4 + 1 + 1
    head = AdaptiveMixtureOfSoftmaxes(16, 90, 8, 4, frequent=30, mix_first_tail=True)
    assert head.rank_bound is None


def test_auto_takes_as_many_tokens_as_one_softmax_would_cost():
    sizes = [AdaptiveMixtureOfSoftmaxes(6, 1000, K, 4).num_frequent for K in (2, 4, 8)]
    assert 1000 / 2 > sizes[0] > sizes[1] > sizes[2] > 1000 / 20


def test_a_near_identical_start_is_that_of_every_mixed_band():
    options = {"frequent": 6, "mix_first_tail": True, "start_noise": 0.2}
    head = AdaptiveMixtureOfSoftmaxes(64, 23, 5, 32, dtype=torch.float64, **options)
    for layer in head.latents:
        weight = layer.weight.detach().unflatten(0, (5, -1))
        size = (weight - weight.mean(0)).std().item() / (1 - 1 / 5) ** 0.5
        assert size == pytest.approx(0.2 * weight.mean(0).std().item(), rel=0.03)
    assert head.prior.weight.abs().max() <= 0.1 / 8
    with pytest.raises(ValueError, match="start_noise must be finite and at least 0, got -1"):
        AdaptiveMixtureOfSoftmaxes(6, 23, 5, 4, start_noise=-1)
