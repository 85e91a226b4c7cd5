"""Mixture of contexts: a softmax of the mixed context, and no more rank than one."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import MixtureOfContexts, Softmax


def test_it_is_a_softmax_of_the_mixed_context(hidden, target, generic):
    head = generic(MixtureOfContexts(6, 11, 3, 4))
    share = F.linear(hidden, head.prior.weight).softmax(-1)
    contexts = head.latent(hidden).tanh().view(7, 3, 4)
    mixed = sum(share[:, k, None] * contexts[:, k] for k in range(3))
    softmax = Softmax(4, 11).double()
    softmax.load_state_dict({"weight": head.weight, "bias": head.bias})
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(mixed))
    torch.testing.assert_close(head(hidden, target), softmax(mixed, target))


def test_its_mixture_has_the_components_and_its_softmaxes_only_one(hidden, generic):
    head = generic(MixtureOfContexts(6, 11, 3, 4))
    assert head.mixture(hidden).context.shape == (7, 3, 4)
    log_weight, context = head.softmaxes(hidden)
    assert context.shape == (7, 1, 4) and (log_weight == 0).all()


@pytest.mark.parametrize("bias, bound", [(True, 6), (False, 5)])
def test_the_rank_of_log_prob_is_exactly_the_bound(generic, bias, bound):
    head = generic(MixtureOfContexts(16, 60, 8, 4, bias=bias))
    log_prob = head.log_prob(torch.randn(70, 16).double())
    assert head.rank_bound == bound
    assert torch.linalg.matrix_rank(log_prob) == bound
