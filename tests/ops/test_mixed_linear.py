"""Products of float32 with weights in half precision: as if these were converted as a whole."""

import pytest
import torch
from torch import nn

from highrank import mixture_cross_entropy
from highrank.ops import mixed_linear
from highrank.ops.mixed_linear import is_wider, linear, through
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.mixture_log_prob import mixture_argmax, mixture_log_prob

N, K, E, V = 7, 3, 6, 40
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(mixed_linear, "BLOCK_BYTES", 9 * 4 * E)


@pytest.fixture(params=HALVES)
def problem(request):
    """Contexts and log-weights in float32, weight and bias in half precision, targets."""
    torch.manual_seed(0)
    context = torch.randn(N, K, E, requires_grad=True)
    log_weight = torch.randn(N, K).log_softmax(-1).requires_grad_()
    weight, bias = torch.randn(V, E).to(request.param), torch.randn(V).to(request.param)
    return context, log_weight, weight.requires_grad_(), bias.requires_grad_()


def solved(function, tensors):
    """The value, and the gradients of its sum with fixed factors."""
    value = function(*tensors)
    factors = torch.linspace(-1, 1, value.numel()).view(value.shape).to(value)
    return value, torch.autograd.grad((value * factors).sum(), tensors, allow_unused=True)


def assert_as_in_float64(function, tensors):
    """Values have the error of float32, gradients that of what they belong to."""
    found, gradients = solved(function, tensors)
    want, exact = solved(function, [x.detach().double().requires_grad_() for x in tensors])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, rtol=2e-6, atol=2e-6)
    for x, a, b in zip(tensors, gradients, exact, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            rtol, atol = torch.finfo(x.dtype).eps, 2e-6 * b.abs().max().item()
            assert a.dtype == x.dtype
            torch.testing.assert_close(a.double(), b, rtol=rtol, atol=atol)


def test_a_wider_dtype_has_all_numbers_of_the_other():
    one = torch.ones(1)
    assert is_wider(one, one.bfloat16()) and is_wider(one.double(), one)
    assert not is_wider(one, one) and not is_wider(one.half(), one.bfloat16())
    assert not is_wider(one.bfloat16(), one)


def test_linear_is_that_of_the_converted_weight(problem):
    context, _, weight, bias = problem
    assert_as_in_float64(linear, [context, weight, bias])
    assert_as_in_float64(lambda x, w: linear(x, w), [context, weight])
    plain = torch.randn(V, E)
    torch.testing.assert_close(linear(context, plain), context @ plain.T)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(context, weight.bfloat16()).dtype == torch.bfloat16


def test_linear_has_second_derivatives_and_transforms():
    torch.manual_seed(0)
    x, weight = torch.randn(2, E).double().requires_grad_(), torch.randn(V, E)
    assert torch.autograd.gradgradcheck(lambda x: linear(x, weight).tanh(), [x])
    found = torch.vmap(linear, (0, None))(x, weight)
    torch.testing.assert_close(found, x @ weight.double().T)


def test_a_layer_is_that_of_its_converted_parameters():
    layer, x = nn.Linear(E, K).bfloat16(), torch.randn(N, E)
    want = nn.functional.linear(x, layer.weight.float(), layer.bias.float())
    torch.testing.assert_close(through(layer, x), want)
    torch.testing.assert_close(through(layer, x.bfloat16()), layer(x.bfloat16()))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
def test_losses_are_those_of_the_same_weights_in_float64(problem, backend, reduction):
    target = torch.randint(V, (N,))
    for options in ({}, {"label_smoothing": 0.1, "z_loss": 0.01}):

        def loss(*tensors, options=options):
            context, log_weight, weight, bias = tensors
            return mixture_cross_entropy(
                context, log_weight, weight, target, bias=bias, reduction=reduction,
                backend=backend, chunk_bytes=3 * K * V * 4, **options,
            )  # fmt: skip

        assert_as_in_float64(loss, list(problem))


def test_log_probabilities_and_entropy_are_too(problem):
    target = torch.randint(V, (N,))
    assert_as_in_float64(mixture_log_prob, list(problem))

    def entropy(context, log_weight, weight, bias):
        found = mixture_loss(context, log_weight, weight, target, bias=bias, also=("entropy",))
        return found.by_products["entropy"]

    assert_as_in_float64(entropy, list(problem))
    wide = [x.double() for x in problem]
    assert torch.equal(mixture_argmax(*problem), mixture_argmax(*wide))


def test_there_is_no_copy_of_the_weight(watch):
    """The gradient of the weight is summed over chunks in float32; there is nothing else."""
    size, blocks = 4000 * E, mixed_linear.BLOCK_BYTES // 4
    context, log_weight = torch.randn(N, 1, E, requires_grad=True), torch.zeros(N, 1)
    weight, target = torch.randn(4000, E).bfloat16(), torch.randint(4000, (N,))
    calls = {
        "loss": lambda: mixture_cross_entropy(
            context, log_weight, weight, target, chunk_bytes=4000 * 4
        ).backward(),
        "log_prob": lambda: mixture_log_prob(context[:2], log_weight[:2], weight).sum().backward(),
        "linear": lambda: linear(context[:2], weight).sum().backward(),
    }
    for name, call in calls.items():
        with watch() as seen:
            call()
        assert blocks <= max(seen.sizes) < size, name
    weight.requires_grad_()
    with watch() as seen:
        calls["loss"]()
    assert sorted(seen.sizes)[-1] == size
