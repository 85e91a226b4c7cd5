"""The streamed loss: the definition in values and gradients, whatever makes the logits."""

import importlib

import pytest
import torch
from torch.autograd import gradcheck

from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.streamed_cross_entropy import streamed_cross_entropy

module = importlib.import_module("highrank.ops.streamed_cross_entropy")
N, K, E, V = 9, 3, 4, 7


def logits_of(features, shared):
    (context,), (weight, bias) = features, shared
    return context @ weight.T + bias


def problem(scale=1.0):
    torch.manual_seed(0)
    log_weight = torch.randn(N, K).double().log_softmax(-1)
    context, weight = scale * torch.randn(N, K, E).double(), torch.randn(V, E).double()
    tensors = (log_weight, context, weight, torch.randn(V).double())
    return [t.requires_grad_() for t in tensors], torch.randint(V, (N,))


def streamed(tensors, target):
    log_weight, context, weight, bias = tensors
    return streamed_cross_entropy(logits_of, log_weight, [context], [weight, bias], target, V)


def defined(tensors, target):
    log_weight, context, weight, bias = tensors
    options = {"bias": bias, "reduction": "sum", "backend": "reference"}
    return mixture_loss(context, log_weight, weight, target, **options)


@pytest.fixture(params=[1, 2, 100])
def tokens_per_chunk(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", request.param * K * V * 8)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_values_and_gradients_are_those_of_the_definition(tokens_per_chunk, scale):
    tensors, target = problem(scale)
    (token_loss, total), want = streamed(tensors, target), defined(tensors, target)
    torch.testing.assert_close(token_loss, want.token_loss, rtol=1e-10, atol=1e-10)
    got = torch.autograd.grad(3 * total, tensors)
    torch.testing.assert_close(
        got, torch.autograd.grad(3 * want.loss, tensors), rtol=1e-10, atol=1e-10
    )


def test_gradients_are_those_of_finite_differences(tokens_per_chunk):
    tensors, target = problem()
    assert gradcheck(lambda *tensors: streamed(tensors, target)[1], tensors)


def test_an_impossible_target_has_infinite_loss_and_no_gradient():
    tensors, target = problem()
    tensors[3].data[2] = -torch.inf
    target[4] = 2
    token_loss, total = streamed(tensors, target)
    got = torch.autograd.grad(total, tensors)
    want = torch.autograd.grad(defined(tensors, target).loss, tensors)
    assert token_loss[4] == torch.inf and total.isfinite()
    torch.testing.assert_close(got, want)


def test_only_wanted_gradients_are_made(watch):
    tensors, target = problem()
    tensors[2].requires_grad_(False)
    with watch() as seen:
        total = streamed(tensors, target)[1]
    assert seen.num_multiplies == 2
    total.backward()
    assert tensors[2].grad is None and tensors[1].grad.any()
    with torch.no_grad(), watch() as seen:
        streamed(tensors, target)
    assert seen.num_multiplies == 1


def test_a_second_backward_pass_gives_the_same():
    tensors, target = problem()
    total = streamed(tensors, target)[1]
    first = torch.autograd.grad(total, tensors, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, tensors), first, rtol=0, atol=0)


def test_without_tokens_the_gradients_are_zero():
    tensors, target = problem()
    tensors = [t.detach()[:0].requires_grad_() for t in tensors[:2]] + tensors[2:]
    token_loss, total = streamed(tensors, target[:0])
    assert len(token_loss) == 0 and total == 0
    assert not any(g.any() for g in torch.autograd.grad(total, tensors))
