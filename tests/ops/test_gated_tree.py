"""A binary tree of gates: the weights of its leaves, and the fast path against autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from highrank.ops.gated_tree import mix_leaves, mix_products


def products(num_leaves, gate_scale=1.0):
    """Contexts (5, K, 6), vectors (3, 6), gates' features (5, K-1, 2) and vectors (3, 2)."""
    shapes = (5, num_leaves, 6), (3, 6), (5, num_leaves - 1, 2), (3, 2)
    *rest, gate_weight = (torch.randn(shape).double() for shape in shapes)
    return [x.requires_grad_() for x in (*rest, gate_scale * gate_weight)]


def definition(context, weight, gate, gate_weight):
    return mix_leaves(F.linear(context, weight), F.linear(gate, gate_weight).sigmoid())


@pytest.mark.parametrize("num_leaves", [2, 4, 8])
def test_the_fast_path_is_the_definition_in_values_and_gradients(num_leaves):
    given = products(num_leaves)
    got, want = mix_products(*given), definition(*given)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    upstream = torch.randn_like(got)
    got, want = (torch.autograd.grad((upstream * x).sum(), given) for x in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert gradcheck(mix_products, given)


def test_what_was_returned_stays_and_a_second_backward_pass_gives_the_same():
    given = products(4)
    got = mix_products(*given)
    before = got.detach().clone()
    first, second = (torch.autograd.grad(got.sum(), given, retain_graph=True) for _ in range(2))
    assert torch.equal(got, before)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_four_leaves_have_the_papers_weights():
    gate = torch.rand(5, 3, 1).double()
    first, second, third = gate.unbind(1)
    want = (first * second, first * (1 - second), (1 - first) * third, (1 - first) * (1 - third))
    leaves = torch.eye(4).double().expand(5, 4, 4)
    torch.testing.assert_close(mix_leaves(leaves, gate), torch.cat(want, -1))


def test_equal_leaves_stay_as_they_are():
    context, weight, gate, gate_weight = products(4, gate_scale=10.0)
    context = context[:, :1].expand(5, 4, 6)
    got = mix_products(context, weight, gate, gate_weight)
    torch.testing.assert_close(got, context[:, 0] @ weight.T)
