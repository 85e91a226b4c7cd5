"""A binary tree of gates: the weights of its leaves, and the fast path against autograd."""

import pytest
import torch
from torch.autograd import gradcheck

from highrank.ops.gated_tree import mixed, mixed_by_score


@pytest.mark.parametrize("num_leaves", [2, 4, 8])
def test_the_fast_path_is_the_definition_in_values_and_gradients(num_leaves):
    values = torch.randn(5, num_leaves, 3).double().requires_grad_()
    score = torch.randn(5, num_leaves - 1, 3).double().requires_grad_()
    got, want = mixed_by_score(values, score), mixed(values, score.sigmoid())
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    upstream = torch.randn_like(got)
    got, want = (torch.autograd.grad((upstream * x).sum(), (values, score)) for x in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert gradcheck(mixed_by_score, (values, score))


def test_four_leaves_have_the_papers_weights():
    gate = torch.rand(5, 3, 1).double()
    first, second, third = gate.unbind(1)
    want = (first * second, first * (1 - second), (1 - first) * third, (1 - first) * (1 - third))
    leaves = torch.eye(4).double().expand(5, 4, 4)
    torch.testing.assert_close(mixed(leaves, gate), torch.cat(want, -1))


def test_equal_leaves_stay_as_they_are():
    values = torch.randn(5, 1, 3).double().expand(5, 4, 3)
    score = 10 * torch.randn(5, 3, 3).double()
    torch.testing.assert_close(mixed_by_score(values, score), values[:, 0])
