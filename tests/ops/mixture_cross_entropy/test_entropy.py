"""The entropy of a mixture, a by-product with a gradient: against its definition, all at once."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from highrank import Softmax
from highrank.ops.logit_map import GeneralizedSigsoftmax
from highrank.ops.mixture_cross_entropy import BACKENDS, mixture_loss
from highrank.ops.mixture_cross_entropy.reducer import Reducer

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def as_function(inputs, **options):
    *tensors, target = inputs
    leaves = [x.detach().requires_grad_() for x in tensors]

    def entropy(context, log_weight, weight, bias):
        found = mixture_loss(
            context, log_weight, weight, target, bias=bias, also=("entropy",), **options
        )
        return found.by_products["entropy"]

    return entropy, leaves


@everywhere
@pytest.mark.parametrize("chunk_bytes", [1, 2000, None])
@pytest.mark.parametrize("logit_map", [None, GeneralizedSigsoftmax()], ids=["", "map"])
def test_values_and_gradients_are_those_of_probabilities(
    problem, agree, backend, chunk_bytes, logit_map
):
    inputs = problem((9,), K=3, V=7)
    inputs.target[4] = -100
    inputs.bias[6] = -torch.inf
    options = {"chunk_bytes": chunk_bytes, "logit_map": logit_map, "backend": backend}
    entropy, leaves = as_function(inputs, **options)
    upstream = torch.linspace(-1, 2, 9).double()
    context, log_weight, weight, bias = leaves
    z = context @ weight[:6].T + bias[:6]  # (N, K, V - 1)
    z = z if logit_map is None else logit_map(z)
    p = (log_weight.exp()[..., None] * z.softmax(-1)).sum(-2)  # (N, V - 1)
    want = -(p * p.log()).sum(-1) * (inputs.target >= 0)
    both = [
        (x.detach(), *torch.autograd.grad(x, leaves, upstream)) for x in (entropy(*leaves), want)
    ]
    agree(*both)


@everywhere
def test_derivatives_are_those_of_finite_differences(problem, backend):
    function = as_function(problem((3,), K=2, E=2, V=4), backend=backend, chunk_bytes=100)
    assert gradcheck(*function, nondet_tol=1e-12)
    assert gradgradcheck(*function, nondet_tol=1e-12)


def test_loss_and_entropy_are_trained_together(problem, agree):
    inputs = problem((9,), K=1)
    head = Softmax(4, 7).double()
    hidden, target = inputs.context[:, 0].requires_grad_(), inputs.target
    _, loss, found = head(hidden, target, also=("entropy", "prediction"))
    log_p = head.log_prob(hidden)
    want = -log_p.gather(1, target[:, None]).mean() - 0.1 * -(log_p.exp() * log_p).sum(-1).mean()
    got = loss - 0.1 * found["entropy"].mean()
    leaves = [hidden, *head.parameters()]
    agree(*[(x.detach(), *torch.autograd.grad(x, leaves)) for x in (got, want)])
    torch.func.grad(lambda h: head(h, target, also=("entropy",)).by_products["entropy"].sum())(
        hidden
    )
    with torch.no_grad():
        assert not head(hidden, target, also=("entropy",)).by_products["entropy"].requires_grad


def test_gradients_of_half_precision_are_summed_in_full_precision():
    torch.manual_seed(0)
    context, weight = torch.randn(2000, 1, 8), torch.randn(50, 8)
    target, log_weight = torch.zeros(2000, dtype=torch.long), torch.zeros(2000, 1)
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        leaf = weight.bfloat16().to(dtype).requires_grad_()
        inputs = context.bfloat16().to(dtype), log_weight.to(dtype), leaf, target
        entropy = mixture_loss(*inputs, also=("entropy",), chunk_bytes=4000).by_products["entropy"]
        found.append(torch.autograd.grad(entropy.sum(), leaf)[0].double())
    assert (found[0] - found[1]).norm() < 0.01 * found[1].norm()


@pytest.mark.parametrize("asked, other", [("prediction", "entropy"), ("entropy", "argmax")])
def test_what_is_not_asked_for_is_not_computed(problem, monkeypatch, asked, other):
    monkeypatch.delattr(Reducer, other)
    out = mixture_loss(**problem((9,), K=2)._asdict(), also=(asked,), backend="fused")
    assert list(out.by_products) == [asked]
