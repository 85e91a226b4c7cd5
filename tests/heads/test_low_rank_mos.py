"""Residual contexts: the formula, the start, and the number of parameters."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import LowRankMixture

D, E, V = 6, 4, 11


@pytest.mark.parametrize("size", [E, None])
@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_it_is_the_formula_in_values_and_gradients(hidden, generic, size, activation):
    head = generic(LowRankMixture(D, V, 3, size, rank=2, activation=activation))
    common = hidden if size is None else head.latent(hidden)
    common = common.tanh() if size is not None and activation == "tanh" else common
    weight, prob = head.prior(hidden).softmax(-1), torch.zeros(7, V).double()
    for k in range(3):
        low = F.linear(hidden, head.down.weight[2 * k : 2 * k + 2]).tanh()
        context = common + low @ head.up[k]
        prob = prob + weight[:, k, None] * F.linear(context, head.weight, head.bias).softmax(-1)
    got = head.log_prob(hidden)
    torch.testing.assert_close(got, prob.log(), rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters()))
        for x in (got, prob.log())
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_components_start_near_each_other_and_all_parts_learn(hidden, target):
    head = LowRankMixture(D, V, 3, E).double()
    context = head.mixture(hidden).context
    assert 0 < (context - context.mean(-2, keepdim=True)).abs().max() < 0.3
    head(hidden, target).loss.backward()
    assert all(parameter.grad.any() for parameter in head.parameters())


def test_a_component_costs_few_parameters():
    sizes = [
        sum(p.numel() for p in LowRankMixture(60, V, K, 40, rank=5).parameters()) for K in (2, 3)
    ]
    assert sizes[1] - sizes[0] == 5 * (60 + 40) + 60


def test_a_wrong_rank_is_named():
    with pytest.raises(ValueError, match="^rank must be at least 1, got 0$"):
        LowRankMixture(D, V, 3, E, rank=0)


def test_a_bias_of_the_prior_decides_the_weights_where_its_matrix_is_zero(hidden):
    head = LowRankMixture(D, V, 3, E, prior_bias=True).double()
    with torch.no_grad():
        head.prior.weight.zero_()
        head.prior.bias.copy_(torch.tensor([0.7, 0.2, 0.1]).log())
    weight = head.mixture(hidden).log_weight.exp()
    torch.testing.assert_close(weight, torch.tensor([0.7, 0.2, 0.1]).double().expand(7, 3))
