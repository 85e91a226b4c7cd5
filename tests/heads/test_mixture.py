"""Responsibilities by their definition, and maps of logits of any mixture."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import LowRankMixture, MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.heads.bases.mixture import log_responsibility
from highrank.ops.logit_map import Softcap


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


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (5, 2, 1)])
def test_targets_of_another_shape_are_refused(shape):
    head = MixtureOfSoftmaxes(6, 11, 3, 4)
    with pytest.raises(ValueError, match=r"target must be \(5, 2\), got"):
        log_responsibility(head, torch.randn(5, 2, 6), torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("word", [-100, 11])
def test_what_is_no_word_is_refused(word):
    with pytest.raises(ValueError, match=f"target must be in 0 … 10 .* got {word}"):
        log_responsibility(MixtureOfSoftmaxes(6, 11, 3, 4), torch.randn(1, 6), torch.tensor([word]))


def test_of_a_word_that_cannot_be_said_nothing_is_learned():
    head, hidden = MixtureOfSoftmaxes(6, 11, 3, 4), torch.randn(1, 6)
    with torch.no_grad():
        head.bias[2] = -torch.inf
        want = head.mixture(hidden).log_weight
    torch.testing.assert_close(log_responsibility(head, hidden, torch.tensor([2])), want)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Softmax(6, 11),
        lambda: MixtureOfSoftmaxes(6, 11, 3, 4),
        lambda: LowRankMixture(6, 11, 3, None, rank=2),
    ],
)
def test_every_mixture_takes_a_map_of_its_logits(build, generic, hidden, target):
    """The formula by brute force, for log-probabilities, the loss and all gradients."""
    head = generic(build())
    head.logit_map = Softcap(1.5)
    log_weight, context = head.softmaxes(hidden)
    capped = 1.5 * (F.linear(context, head.weight, head.bias) / 1.5).tanh()  # (N, K, V)
    want = (log_weight[..., None] + capped.log_softmax(-1)).logsumexp(-2)  # (N, V)
    torch.testing.assert_close(head.log_prob(hidden), want)
    assert head.rank_bound is None
    losses = head(hidden, target).loss, F.nll_loss(want, target)
    got, want = (torch.autograd.grad(loss, list(head.parameters())) for loss in losses)
    torch.testing.assert_close(got, want)
