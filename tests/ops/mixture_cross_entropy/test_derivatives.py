"""Derivatives against finite differences, torch.func, and each other."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

OPTIONS = pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
LOGIT_MAPS = pytest.mark.parametrize("logit_map", [None, Softcap(3.0)], ids=["", "softcap"])


def as_function(inputs, **options):
    """The loss as a function of its tensors, and those tensors as leaves."""
    *tensors, target = inputs
    leaves = [t.detach().requires_grad_() for t in tensors if t is not None]

    def loss(context, log_weight, weight, bias=None):
        return mixture_cross_entropy(
            context, log_weight, weight, target, bias=bias, chunk_bytes=200, **options
        )

    return loss, leaves


def small(problem, bias=True):
    inputs = problem((3,), K=2, E=2, V=5, bias=bias)
    inputs.target[1] = -100
    return inputs


@OPTIONS
@LOGIT_MAPS
def test_gradients_are_those_of_finite_differences(problem, way, bias, logit_map):
    # A second backward pass may recompute, and differ in the last bit.
    function = as_function(small(problem, bias), logit_map=logit_map, **way)
    assert gradcheck(*function, nondet_tol=1e-12)


@OPTIONS
@LOGIT_MAPS
def test_second_derivatives_are_those_of_finite_differences(problem, way, bias, logit_map):
    assert gradgradcheck(*as_function(small(problem, bias), logit_map=logit_map, **way))


def test_second_derivatives_where_some_inputs_are_frozen(problem, way):
    loss, (context, log_weight, weight, bias) = as_function(small(problem), **way)
    frozen = log_weight.detach(), weight, bias.detach()
    assert gradgradcheck(lambda c, w: loss(c, frozen[0], w, frozen[2]), (context, weight))


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
def test_torch_func_agrees_with_autograd(problem, solve, agree, backend):
    inputs = small(problem)
    loss, leaves = as_function(inputs, backend=backend)
    got = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*leaves)
    agree(got, solve(inputs, backend="reference")[1:])


@pytest.mark.parametrize("backend", ["auto", "chunked"])
def test_torch_func_can_differentiate_twice(problem, backend):
    def curvature(backend):
        loss, (context, *others) = as_function(small(problem), backend=backend)
        once = torch.func.grad(loss)
        return torch.func.grad(lambda context: once(context, *others).square().sum())(context)

    torch.testing.assert_close(curvature(backend), curvature("reference"), rtol=0, atol=1e-10)


def test_every_backward_pass_through_a_graph_gives_the_same_gradients(problem, agree, way):
    loss, leaves = as_function(problem(), **way)
    result = 3 * loss(*leaves).sum()
    first = torch.autograd.grad(result, leaves, retain_graph=True)
    first = [gradient.clone() for gradient in first]
    agree(torch.autograd.grad(result, leaves, retain_graph=True), first)
    agree(torch.autograd.grad(result, leaves), first)


def test_backward_passes_through_a_graph_accumulate(problem, solve, agree, way):
    loss, leaves = as_function(problem(), **way)
    result = loss(*leaves).sum()
    for _ in range(3):
        result.backward(retain_graph=True)
    once = solve(problem(), **way)[1:]
    agree([leaf.grad for leaf in leaves], [3 * gradient for gradient in once])


def test_a_second_backward_pass_leaves_out_impossible_targets_too(problem, agree, way):
    inputs = problem()
    inputs.bias[inputs.target[0]] = -torch.inf
    loss, leaves = as_function(inputs, **way)
    result = loss(*leaves).sum()
    first = [g.clone() for g in torch.autograd.grad(result, leaves, retain_graph=True)]
    agree(torch.autograd.grad(result, leaves), first)


def test_the_upstream_gradient_counts(problem, solve, agree, way):
    inputs = problem()
    upstream = torch.linspace(-2, 3, 9).double()
    upstream = upstream if way["reduction"] == "none" else upstream[0]
    got = solve(inputs, upstream=upstream, chunk_bytes=400, **way)
    agree(got, solve(inputs, upstream=upstream, **(way | {"backend": "reference"})))
    loss, leaves = as_function(inputs, **way)
    agree(got[1:], torch.autograd.grad((loss(*leaves) * upstream).sum(), leaves))
