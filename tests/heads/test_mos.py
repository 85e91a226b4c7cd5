"""Mixture of softmaxes: the paper's formula, its limits, and a rank beyond one softmax."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import MixtureOfSoftmaxes, Softmax


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_it_is_the_papers_formula(hidden, generic, activation):
    head = generic(MixtureOfSoftmaxes(6, 11, 3, 4, activation=activation))
    share = F.linear(hidden, head.prior.weight).softmax(-1)
    prob = torch.zeros(7, 11).double()
    for k in range(3):
        rows = slice(4 * k, 4 * k + 4)
        context = F.linear(hidden, head.latent.weight[rows], head.latent.bias[rows])
        context = context.tanh() if activation == "tanh" else context
        prob += share[:, k, None] * F.linear(context, head.weight, head.bias).softmax(-1)
    torch.testing.assert_close(head.log_prob(hidden).exp(), prob)


def test_the_prior_has_no_bias_and_the_latent_layer_has_one():
    head = MixtureOfSoftmaxes(6, 11, 3, 4)
    shapes = {name: tuple(p.shape) for name, p in head.named_parameters()}
    assert shapes == {
        "weight": (11, 4),
        "bias": (11,),
        "latent.weight": (12, 6),
        "latent.bias": (12,),
        "prior.weight": (3, 6),
    }


def test_one_component_is_a_softmax_over_the_context(hidden, target, generic):
    head = generic(MixtureOfSoftmaxes(6, 11, 1, 4))
    softmax = Softmax(6, 11, 4).double()
    state = head.state_dict()
    del state["prior.weight"]
    softmax.load_state_dict(state)
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden))
    torch.testing.assert_close(head(hidden, target), softmax(hidden, target))
    assert head.rank_bound == softmax.rank_bound == 6


def test_equal_components_are_one_softmax_whatever_the_prior(hidden, generic):
    softmax = generic(Softmax(6, 11, 4))
    head = generic(MixtureOfSoftmaxes(6, 11, 3, 4))
    state = {
        name: value.repeat(3, *[1] * (value.dim() - 1))
        for name, value in softmax.latent.state_dict(prefix="latent.").items()
    }
    state |= {"weight": softmax.weight, "bias": softmax.bias, "prior.weight": head.prior.weight}
    head.load_state_dict(state)
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden))


@pytest.mark.parametrize("bias", [False, True])
def test_the_rank_of_log_prob_exceeds_the_bound_of_one_softmax(generic, bias):
    head = generic(MixtureOfSoftmaxes(16, 60, 8, 4, bias=bias))
    log_prob = head.log_prob(torch.randn(70, 16).double())
    assert head.rank_bound is None
    assert torch.linalg.matrix_rank(log_prob) == 60


def test_weights_are_normalised_and_in_float32_for_bfloat16():
    head = MixtureOfSoftmaxes(6, 11, 3, 4, dtype=torch.bfloat16)
    log_weight, context = head.mixture(torch.randn(7, 6, dtype=torch.bfloat16))
    assert (log_weight.dtype, context.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(log_weight.logsumexp(-1), torch.zeros(7))


def test_the_gradient_of_the_prior_is_weight_minus_responsibility(hidden, target, generic):
    head = generic(MixtureOfSoftmaxes(6, 11, 3, 4))
    head(hidden, target, "sum").loss.backward()
    log_weight, context = head.mixture(hidden)
    log_q = F.linear(context, head.weight, head.bias).log_softmax(-1)
    joint = log_weight + log_q[torch.arange(7), :, target]
    slope = log_weight.exp() - joint.softmax(-1)
    torch.testing.assert_close(head.prior.weight.grad, slope.T @ hidden)


def test_log_probabilities_are_those_of_googles_unit_test():
    """MixtureOfSoftmaxes in mesh_tensorflow/transformer/vocab_embeddings_test.py."""
    head = MixtureOfSoftmaxes(3, 4, 2, 3, bias=False).double()
    one = torch.eye(3).double()
    with torch.no_grad():
        head.weight.copy_(torch.cat((one, one[2:])))
        head.latent.weight.copy_(torch.cat((one, one.flip(0))))
        head.latent.bias.zero_()
        head.prior.weight.copy_(torch.tensor([[1.0, 0, 0], [1, 0, 1]]))
    first, second = (
        torch.tensor(x).double().tanh().softmax(-1) for x in ([1.0, 1, 2, 2], [2.0, 1, 1, 1])
    )
    want = (0.1192029 * first + 0.8807971 * second).log()
    got = head.log_prob(torch.tensor([1.0, 1, 2]).double())
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
