"""Mixture of softmaxes: the paper's formula, gradients, and Google's numbers."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import MixtureOfSoftmaxes


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
