"""A mixture with one context for rare tokens: MoS or a softmax in its limits."""

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, SharedTailMixtureOfSoftmaxes, Softmax
from highrank.ops.loss import chunks

EXACT = {"rtol": 1e-10, "atol": 1e-10}
COUNTS = [(5 * token) % 23 for token in range(23)]


def test_without_others_it_is_a_mixture_of_softmaxes(generic, hidden, target):
    head = generic(SharedTailMixtureOfSoftmaxes(6, 23, 3, 4, frequent=23, token_counts=COUNTS))
    mos = MixtureOfSoftmaxes(6, 23, 3, 4).double()
    state = {n.replace("latents.0", "latent"): x for n, x in head.state_dict().items()}
    mos.load_state_dict({name: state[name] for name in mos.state_dict()})
    torch.testing.assert_close(head.log_prob(hidden), mos.log_prob(hidden), **EXACT)
    torch.testing.assert_close(head(hidden, target), mos(hidden, target), **EXACT)
    assert head.rank_bound is None


@pytest.mark.parametrize("num_components", [1, 3])
def test_with_equal_contexts_it_is_a_softmax(hidden, target, num_components):
    options = {"frequent": 7, "token_counts": COUNTS, "start_noise": 0.0, "dtype": torch.float64}
    head = SharedTailMixtureOfSoftmaxes(6, 23, num_components, 4, **options)
    softmax = Softmax(6, 23, 4).double()
    with torch.no_grad():
        softmax.weight.copy_(head.weight)
        softmax.bias.copy_(head.bias.normal_())
        softmax.latent.load_state_dict(head.latents[1].state_dict())
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden), **EXACT)
    torch.testing.assert_close(head(hidden, target), softmax(hidden, target), **EXACT)


@pytest.mark.parametrize("bias", [True, False])
def test_its_rank_is_that_of_a_column_per_frequent_token(generic, bias):
    head = generic(SharedTailMixtureOfSoftmaxes(16, 90, 8, 4, frequent=30, bias=bias), 0.7)
    log_prob = head.log_prob(torch.randn(100, 16).double())
    assert head.rank_bound == torch.linalg.matrix_rank(log_prob) == 30 + 4 + 1 + bias


@pytest.mark.parametrize("bias", [True, False])
def test_with_one_component_it_is_a_partition_of_the_vocabulary(generic, bias):
    head = generic(SharedTailMixtureOfSoftmaxes(16, 90, 1, 4, frequent=30, bias=bias))
    log_prob = head.log_prob(torch.randn(100, 16).double())
    assert head.rank_bound == torch.linalg.matrix_rank(log_prob) == 2 * 4 + 1 + bias


def test_a_tenth_of_the_vocabulary_is_frequent_unless_it_is_given():
    assert SharedTailMixtureOfSoftmaxes(6, 1000, 3, 4).num_frequent == 100
    assert SharedTailMixtureOfSoftmaxes(6, 5, 3, 4).num_frequent == 1


def test_forbidden_tokens_leave_the_others_their_probability(generic, hidden, target):
    head = generic(SharedTailMixtureOfSoftmaxes(6, 23, 3, 4, frequent=7))
    head.bias.data[[7, 8, 2]] = -torch.inf
    total = head.log_prob(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))
    possible = ~torch.isin(target, torch.tensor([7, 8, 2]))
    assert head(hidden[possible], target[possible]).loss.isfinite()


def test_the_others_are_summed_in_the_memory_of_a_chunk(watch, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 5 * 1000)
    head = SharedTailMixtureOfSoftmaxes(6, 1000, 3, 4, frequent=20)
    with watch() as seen:
        head(torch.randn(200, 6), torch.randint(1000, (200,))).loss.backward()
    assert max(seen.sizes) < 200 * 1000 / 10
