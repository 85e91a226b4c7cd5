"""Mapped logits: the formula by brute force, argmax and rank."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import Pointwise, Softmax

D, E, V = 6, 4, 11
MAPS = ["sigsoftmax", "gss:-1.5,2.5", "softcap:3", "plif:9,4"]


def filled(head, source):
    """The head with another's parameters."""
    head.load_state_dict(source.state_dict(), strict=False)
    return head


@pytest.mark.parametrize("logit_map", MAPS)
def test_it_is_the_formula_in_values_and_gradients(hidden, generic, logit_map):
    head = generic(Pointwise(D, V, 3, E, logit_map=logit_map))
    log_weight, context = head.mixture(hidden)
    prob = head.logit_map(F.linear(context, head.weight, head.bias)).softmax(-1)
    want = (log_weight.exp()[..., None] * prob).sum(-2).log()
    got = head.log_prob(hidden)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters())) for x in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_sigsoftmax_far_up_is_a_softmax_and_far_down_one_of_doubled_logits(hidden, generic):
    head = generic(Pointwise(D, V, 1, E))
    logits = F.linear(head.mixture(hidden).context[:, 0], head.weight)
    for shift, factor in ((50.0, 1), (-50.0, 2)):
        torch.nn.init.constant_(head.bias, shift)
        want = (factor * logits).log_softmax(-1)
        torch.testing.assert_close(head.log_prob(hidden), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("logit_map", MAPS)
def test_the_likeliest_token_of_one_softmax_stays_so(hidden, generic, logit_map):
    softmax = generic(Softmax(D, V, E))
    head = filled(generic(Pointwise(D, V, 1, E, logit_map=logit_map)), softmax)
    assert torch.equal(head.predict(hidden), softmax.predict(hidden))


@pytest.mark.parametrize("logit_map", MAPS)
def test_one_softmax_has_no_bound_on_its_rank(generic, logit_map):
    head = generic(Pointwise(16, 60, 1, E, logit_map=logit_map))
    log_prob = head.log_prob(torch.randn(70, 16).double())
    assert head.rank_bound is None
    assert torch.linalg.matrix_rank(log_prob) == 60


def test_plif_is_trained_with_the_rest(hidden, target):
    head = Pointwise(D, V, 2, E, logit_map="plif:50,2").double()
    assert "logit_map.score" in head.state_dict()
    head(hidden, target).loss.backward()
    assert head.logit_map.score.grad.any()
