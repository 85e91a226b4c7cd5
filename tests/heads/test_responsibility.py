"""Responsibilities: the posterior over components, by its definition."""

import torch
import torch.nn.functional as F

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.heads.responsibility import log_responsibility


def test_it_is_bayes_rule():
    head = MixtureOfSoftmaxes(6, 11, 3, 4).double()
    for p in head.parameters():
        torch.nn.init.normal_(p)
    hidden, target = torch.randn(5, 2, 6).double(), torch.randint(11, (5, 2))
    log_weight, context = head.mixture(hidden)
    q = F.linear(context, head.weight, head.bias).softmax(-1)  # (5, 2, 3, 11)
    joint = log_weight.exp() * q.gather(-1, target[..., None, None].expand(5, 2, 3, 1))[..., 0]
    want = joint / joint.sum(-1, keepdim=True)
    torch.testing.assert_close(log_responsibility(head, hidden, target).exp(), want)


def test_one_softmax_is_responsible_for_everything():
    hidden, target = torch.randn(7, 6), torch.randint(11, (7,))
    for head in (Softmax(6, 11), MixtureOfContexts(6, 11, 3, 4)):
        assert torch.equal(log_responsibility(head, hidden, target), torch.zeros(7, 1))
