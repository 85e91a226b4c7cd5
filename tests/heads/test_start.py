"""Contexts that start nearly equal: one softmax at first, plus noise that sums to zero."""

import pytest
import torch

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.heads.start import PRIOR_SCALE

KINDS = pytest.mark.parametrize("kind", [MixtureOfContexts, MixtureOfSoftmaxes])


def contexts_of(head):
    """The weights of the contexts, (K, E, D)."""
    return head.latent.weight.detach().unflatten(0, (head.num_components, -1))


def loss_of(head, hidden, target):
    return head(hidden, target).loss.item()


@KINDS
def test_without_noise_a_mixture_starts_as_one_softmax(kind, hidden, target):
    head = kind(6, 11, 3, 4, start_noise=0.0).double()
    softmax = Softmax(6, 11, 4).double()
    with torch.no_grad():
        softmax.weight.copy_(head.weight)
        softmax.latent.weight.copy_(contexts_of(head)[0])
        softmax.latent.bias.copy_(head.latent.bias[:4])
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden))


@KINDS
def test_the_noise_sums_to_zero_and_has_the_fraction_that_was_asked_for(kind):
    head = kind(64, 11, 5, 32, start_noise=0.2, dtype=torch.float64)
    weight = contexts_of(head)
    common = weight.mean(0)
    size = (weight - common).std().item() / (1 - 1 / 5) ** 0.5
    assert size == pytest.approx(0.2 * common.std().item(), rel=0.03)
    # nn.Linear's own initial values are what the contexts have in common.
    assert 0.99 * 64**-0.5 < common.abs().max() <= 64**-0.5
    bias = head.latent.bias.detach().unflatten(0, (5, -1))
    assert (bias == bias[0]).all() and bias.any()


def test_the_change_is_of_second_order(hidden, target):
    losses = []
    for noise in (0.0, 1e-2, 1e-3):
        torch.manual_seed(0)
        head = MixtureOfSoftmaxes(6, 11, 4, 4, start_noise=noise, dtype=torch.float64)
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.zeros_(head.prior.weight)
        losses.append(loss_of(head, hidden, target))
    changes = [abs(loss - losses[0]) for loss in losses[1:]]
    # A tenth of the noise, a hundredth of the change.
    assert changes[1] == pytest.approx(changes[0] / 100, rel=0.2)


@KINDS
def test_the_prior_starts_a_tenth_as_wide(kind):
    torch.manual_seed(1)
    usual = kind(6, 11, 3, 4)
    torch.manual_seed(1)
    near = kind(6, 11, 3, 4, start_noise=0.2)
    torch.testing.assert_close(near.prior.weight, PRIOR_SCALE * usual.prior.weight)
    assert torch.equal(near.weight, usual.weight)


@KINDS
def test_resetting_starts_nearly_equal_again(kind):
    head = kind(6, 11, 3, 4, start_noise=0.0)
    torch.nn.init.normal_(head.latent.weight)
    head.reset_parameters()
    weight = contexts_of(head)
    assert (weight == weight[0]).all() and head.prior.weight.abs().max() <= PRIOR_SCALE * 6**-0.5


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
def test_a_wrong_noise_is_named(noise):
    with pytest.raises(ValueError, match="start_noise must be finite and at least 0, got"):
        MixtureOfSoftmaxes(6, 11, 3, 4, start_noise=noise)
