"""Blocks of logits side by side: `torch.cat` of linear layers, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from highrank.ops.joined_linear import joined_linear

N, E, SIZES = 5, 3, (4, 2, 0)


def blocks(dtype=torch.float64):
    contexts = [torch.randn(N, E, dtype=dtype, requires_grad=True) for _ in SIZES]
    weights = [torch.randn(size, E, dtype=dtype, requires_grad=True) for size in SIZES]
    return contexts, weights


@pytest.mark.parametrize("size", [None, 3])
def test_it_is_the_concatenation_in_values_and_gradients(size):
    contexts, weights = blocks()
    before = None if size is None else torch.randn(N, size).double().requires_grad_()
    bias = torch.randn(sum(SIZES) + (size or 0)).double().requires_grad_()
    parts = [F.linear(c, w) for c, w in zip(contexts, weights, strict=True)]
    want = torch.cat(parts if before is None else [before, *parts], -1) + bias
    got = joined_linear(contexts, weights, bias, before)[:, 0]
    torch.testing.assert_close(got, want)
    leaves = [bias, *contexts, *weights] + ([] if before is None else [before])
    upstream = torch.randn_like(got)
    got, want = (torch.autograd.grad((upstream * x).sum(), leaves) for x in (got, want))
    torch.testing.assert_close(got, want)
    assert gradcheck(lambda *_: joined_linear(contexts, weights, bias, before), leaves)


def test_autocast_multiplies_in_half_precision():
    contexts, weights = blocks(torch.float32)
    bias = torch.randn(sum(SIZES), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = joined_linear(contexts, weights, bias)
    got.sum().backward()
    assert got.dtype == torch.bfloat16 and weights[0].grad.dtype == torch.float32
    want = joined_linear(contexts, weights, bias)
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)


def test_columns_of_several_softmaxes_follow_each_other():
    contexts, weights = blocks()
    bias = torch.randn(6).double()
    got = joined_linear(contexts, weights, bias, num_softmaxes=2)
    assert torch.equal(got.flatten(1), joined_linear(contexts, weights, bias)[:, 0])
    assert got.shape == (N, 2, 3) and not got._is_view()
