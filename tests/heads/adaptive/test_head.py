"""Adaptive heads of every form: the definition, classes, tails, and the order of tokens."""

import copy

import pytest
import torch
from contract import gradients
from torch import nn

V = 23
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def test_log_prob_and_its_gradients_are_those_of_the_definition(head, hidden, reference):
    hidden.requires_grad_()
    upstream = torch.randn(40, V).double()
    got, want = head.log_prob(hidden), reference(head, hidden)
    torch.testing.assert_close(got, want, **EXACT)
    both = [gradients((upstream * x).sum(), head, hidden) for x in (got, want)]
    torch.testing.assert_close(*both, **EXACT)


def test_a_forbidden_class_forbids_its_tokens(head, hidden):
    if head.class_bias is None:
        return
    head.class_bias.data[0] = -torch.inf
    start = head.cutoffs[0]
    tokens = head.order[start : start + head.sizes[1]]
    assert head(hidden[: len(tokens)], tokens).loss == torch.inf
    assert (head.log_prob(hidden)[:, tokens] == -torch.inf).all()
    assert not torch.isin(head.sample(hidden.repeat(50, 1)), tokens).any()


def test_forbidden_targets_are_impossible_and_leave_the_gradients_of_the_others(head, hidden):
    if head.bias is None or not head.cutoffs:
        return
    forbidden = head.order[[0, head.cutoffs[0], -1]]
    head.bias.data[forbidden] = -torch.inf
    target = head.order.repeat(4)[:40]
    is_possible, hidden = ~torch.isin(target, forbidden), hidden.requires_grad_()
    found = head(hidden, target, reduction="sum")
    assert torch.equal(found.output.isfinite(), is_possible) and found.loss == torch.inf
    want = head(hidden[is_possible], target[is_possible], reduction="sum").loss
    both = [gradients(loss, head, hidden) for loss in (found.loss, want)]
    torch.testing.assert_close(*both, **EXACT)


def test_every_parameter_has_a_gradient_without_targets_in_the_tails(head, hidden):
    head(hidden, head.order[:1].expand(40)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_tails_are_computed_only_for_their_targets(watch, build):
    head = build()
    hidden = torch.randn(50, 6)
    rare, frequent = head.order[-1:].expand(50), head.order[:1].expand(50)
    sizes = []
    for target in (frequent, rare):
        with watch() as seen:
            head(hidden, target).loss.backward()
        sizes.append(sum(seen.sizes))
    assert sizes[0] < sizes[1] or not head.cutoffs


def test_the_components_mix_to_the_frequent_tokens_and_the_tails(head, hidden):
    log_weight, log_q = head.component_log_prob(hidden)
    got = (log_weight.exp()[..., None] * log_q.exp()).sum(1)  # (N, R + m)
    parts = head.log_prob(hidden).exp()[:, head.order].split(head.sizes, -1)
    want = torch.cat([parts[0], *(part.sum(-1, keepdim=True) for part in parts[1:])], -1)
    torch.testing.assert_close(got, want, **EXACT)


def test_renaming_the_tokens_changes_nothing_else(build, generic, hidden, target):
    """The same head with ids in the order of frequency."""
    head = generic(build())
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.order.copy_(torch.arange(V))
        other.bias.copy_(head.bias[head.order])
        if not head.is_banded:
            other.weight.copy_(head.weight[head.order])
    torch.testing.assert_close(other.log_prob(hidden), head.log_prob(hidden)[:, head.order])


def test_the_bands_of_a_narrow_head_are_tied(head):
    if not head.is_banded:
        return
    weights = [nn.Parameter(torch.randn_like(weight)) for weight in head.weights]
    head.tie(weights)
    assert all(a is b for a, b in zip(head.weights, weights, strict=True))
    with pytest.raises(ValueError, match=r"must have bands \[\(.*AdaptiveEmbedding has, got"):
        head.tie(nn.Parameter(torch.randn(V, 4)))
