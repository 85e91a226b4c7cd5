"""One softmax: torch's own, with a bound on its rank that it attains."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import Softmax


def test_the_hidden_state_itself_is_the_context(hidden, target, generic):
    head = generic(Softmax(6, 11))
    logits = F.linear(hidden, head.weight, head.bias)
    torch.testing.assert_close(head.log_prob(hidden), logits.log_softmax(-1))
    torch.testing.assert_close(head(hidden, target).loss, F.cross_entropy(logits, target))


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_an_embedding_size_puts_a_layer_before_it(hidden, target, generic, activation):
    head = generic(Softmax(6, 11, 4, activation=activation))
    context = head.latent(hidden)
    context = context.tanh() if activation == "tanh" else context
    logits = F.linear(context, head.weight, head.bias)
    torch.testing.assert_close(head(hidden, target).loss, F.cross_entropy(logits, target))


def test_the_mixture_has_one_component_of_weight_one(hidden, generic):
    log_weight, context = generic(Softmax(6, 11)).mixture(hidden)
    assert (log_weight == 0).all() and log_weight.dtype == torch.float64
    assert torch.equal(context.squeeze(-2), hidden)


@pytest.mark.parametrize("bias, bound", [(True, 8), (False, 7)])
def test_the_rank_of_log_prob_is_exactly_the_bound(generic, bias, bound):
    head = generic(Softmax(6, 60, bias=bias))
    log_prob = head.log_prob(torch.randn(70, 6).double())
    assert head.rank_bound == bound
    assert torch.linalg.matrix_rank(log_prob) == bound


def test_the_bound_counts_the_embedding_not_the_hidden_state(generic):
    head = generic(Softmax(20, 60, 5))
    log_prob = head.log_prob(torch.randn(70, 20).double())
    assert head.rank_bound == torch.linalg.matrix_rank(log_prob) == 5 + 2
