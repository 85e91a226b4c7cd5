"""Sparse mixture of softmaxes: the chosen components alone, and the term that balances them."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import SparseMixtureOfSoftmaxes
from highrank.heads.bases.mixture import log_responsibility

D, V, K, E = 6, 11, 4, 3


@pytest.fixture(params=[1, 2, 3], ids="m={}".format)
def head(request, generic):
    return generic(SparseMixtureOfSoftmaxes(D, V, K, E, num_active=request.param, balance=0.0))


def reference(head, hidden):
    """p with a dense mask, token by token, (N, V)."""
    rows = []
    for h in hidden:
        score = head.prior(h)
        chosen = set(score.topk(head.num_active).indices.tolist())
        weight = score.masked_fill(torch.tensor([k not in chosen for k in range(K)]), -torch.inf)
        context = head.latent(h).tanh().view(K, E)
        prob = F.linear(context, head.weight, head.bias).softmax(-1)  # (K, V)
        rows.append(weight.softmax(-1) @ prob)
    return torch.stack(rows)


def test_values_and_gradients_are_those_of_a_dense_mask(head, hidden, target):
    hidden.requires_grad_()
    prob = reference(head, hidden)
    torch.testing.assert_close(head.log_prob(hidden), prob.log(), rtol=1e-10, atol=1e-10)
    want = -prob.log()[torch.arange(7), target].mean()
    loss = head(hidden, target).loss
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    leaves = [hidden, *head.parameters()]
    got, wanted = (torch.autograd.grad(x, leaves) for x in (loss, want))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_one_active_component_has_the_rank_of_one_softmax(generic):
    head = generic(SparseMixtureOfSoftmaxes(16, 60, 8, 4, num_active=1))
    rank = torch.linalg.matrix_rank(head.log_prob(torch.randn(90, 16).double()))
    assert rank == head.rank_bound == 6
    two = generic(SparseMixtureOfSoftmaxes(16, 60, 8, 4, num_active=2))
    assert torch.linalg.matrix_rank(two.log_prob(torch.randn(90, 16).double())) == 60


def test_responsibility_is_of_the_components_that_were_chosen(head, hidden, target):
    log_r = log_responsibility(head, hidden, target)
    is_chosen = head.mixture(hidden).log_weight > -torch.inf
    assert log_r.shape == (7, K) and torch.equal(log_r > -torch.inf, is_chosen)
    torch.testing.assert_close(log_r.exp().sum(-1), torch.ones(7).double())


def test_only_the_chosen_softmaxes_are_computed(head, hidden, target, watch):
    assert head.features(hidden).context.shape == (7, head.num_active, E)
    with watch() as seen:
        head(hidden, target).loss.backward()
    assert max(seen.sizes) == 7 * max(head.num_active * V, K * E)


def test_the_penalty_is_the_squared_variation_of_the_mean_weights(hidden, generic):
    head = generic(SparseMixtureOfSoftmaxes(D, V, K, E, balance=0.3))
    weight = head.prior(hidden).softmax(-1).mean(0)
    want = 0.3 * weight.var(correction=0) / weight.mean() ** 2
    torch.testing.assert_close(head.penalty(hidden), want)
    assert want > 0 and SparseMixtureOfSoftmaxes(D, V, K, E, balance=0.0).penalty(hidden) == 0


def test_the_penalty_needs_no_contexts_and_no_random_numbers(hidden, watch):
    head = SparseMixtureOfSoftmaxes(D, V, K, E, balance=0.3, dropout=0.5).double()
    before = torch.random.get_rng_state()
    with watch() as seen:
        head.penalty(hidden)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert max(seen.sizes) <= 7 * D < 7 * K * E


def test_the_penalty_reaches_a_component_that_is_never_chosen(generic, hidden, target):
    head = generic(SparseMixtureOfSoftmaxes(D, V, K, E, num_active=1, balance=1.0))
    with torch.no_grad():
        head.prior.weight[2] = -10 * head.prior.weight[:2].mean(0)
    never = (head.mixture(hidden).log_weight == -torch.inf).all(0)  # (K,)
    assert never.any()
    head(hidden, target, with_penalty=False).loss.backward()
    assert (head.prior.weight.grad[never] == 0).all()
    before = head.imbalance(hidden)
    head.penalty(hidden).backward()
    assert (head.prior.weight.grad[never] != 0).all()
    with torch.no_grad():
        head.prior.weight -= 0.01 * torch.autograd.grad(before, head.prior.weight)[0]
    assert head.imbalance(hidden) < before


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="num_active must be at least 1, got 0"):
        SparseMixtureOfSoftmaxes(D, V, K, E, num_active=0)
    with pytest.raises(ValueError, match="balance must be at least 0 and finite, got -1"):
        SparseMixtureOfSoftmaxes(D, V, K, E, balance=-1)
