"""One softmax: the loss of torch's own functions, values and gradients, small and large."""

import pytest
import torch
import torch.nn.functional as F

from highrank.ops import linear_cross_entropy as module
from highrank.ops.linear_cross_entropy import linear_cross_entropy

N, E, V = 9, 4, 7


@pytest.fixture(params=["small", "large"], autouse=True)
def size(request, monkeypatch):
    """Through torch's functions, or through the chunks of the mixture loss."""
    monkeypatch.setattr(module, "SMALL_BYTES", 2**20 if request.param == "small" else 0)


@pytest.fixture
def tensors():
    shapes = (N, E), (V, E), (V,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": True}], ids=str)
def test_it_is_torchs_loss_of_logits(tensors, reduction, has_bias, options):
    input, weight, bias = tensors
    target = torch.arange(N) % V
    target[4] = -100
    if "weight" in options:
        options = {"weight": torch.linspace(0.5, 2, V, dtype=torch.float64)}
    bias = bias if has_bias else None
    got = linear_cross_entropy(
        input, weight, target, linear_bias=bias, reduction=reduction, **options
    )
    want = F.cross_entropy(F.linear(input, weight, bias), target, reduction=reduction, **options)
    leaves = tensors if has_bias else tensors[:2]
    both = [(x, *torch.autograd.grad(x.sum(), leaves)) for x in (got, want)]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": None}], ids=str)
@pytest.mark.parametrize("has_weight", [False, True], ids=["", "weight"])
@pytest.mark.parametrize("is_dense", [False, True], ids=["ids", "dense"])
def test_it_is_torchs_function_of_the_same_name(tensors, reduction, options, has_weight, is_dense):
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("torch has none before 2.13")
    input, weight, bias = tensors
    target = torch.arange(N) % V
    if is_dense:
        target = torch.randn(N, V).double().softmax(-1)
        target[2, 3] = 0.0
    options = {**options, "linear_bias": bias, "reduction": reduction}
    if has_weight:
        options["weight"] = torch.linspace(0.5, 2, V, dtype=torch.float64)
    functions = linear_cross_entropy, F.linear_cross_entropy
    both = [f(input, weight, target, **options) for f in functions]
    both = [(x, *torch.autograd.grad(x.sum(), tensors)) for x in both]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)
    if is_dense:
        with pytest.raises(ValueError, match=r"^target probabilities must be \(..., 7\), got \(9"):
            linear_cross_entropy(input, weight, target[:, 1:])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_any_leading_dimensions_are_tokens(tensors, reduction):
    input, weight, bias = tensors
    target = torch.arange(N) % V
    flat = linear_cross_entropy(input, weight, target, linear_bias=bias, reduction=reduction)
    shaped = linear_cross_entropy(
        input.view(3, 3, E), weight, target.view(3, 3), linear_bias=bias, reduction=reduction
    )
    torch.testing.assert_close(shaped.flatten(), flat.flatten())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_an_impossible_target_has_no_gradient_whatever_the_size(tensors, reduction):
    input, weight, bias = tensors
    target = torch.arange(N) % V
    with torch.no_grad():
        bias[target[2]] = -torch.inf
    loss = linear_cross_entropy(input, weight, target, linear_bias=bias, reduction=reduction)
    assert loss.isinf().any()
    gradient = torch.autograd.grad(loss.sum(), input)[0]
    impossible = target == target[2]
    assert not gradient[impossible].any() and gradient[~impossible].any(-1).all()


def test_any_integers_are_targets_and_wrong_ones_are_named(tensors):
    input, weight, _ = tensors
    target = torch.arange(N) % V
    want = linear_cross_entropy(input, weight, target)
    torch.testing.assert_close(linear_cross_entropy(input, weight, target.int()), want)
    with pytest.raises(ValueError, match=r"target must be in 0 … 6 \(V = 7\), got 7"):
        linear_cross_entropy(input, weight, target + 1)
    with pytest.raises(ValueError, match="reduction must be one of"):
        linear_cross_entropy(input, weight, target, reduction="total")
    with pytest.raises(ValueError, match=r"target must be \(9,\), got \(8,\)"):
        linear_cross_entropy(input, weight, target[:8])
    with pytest.raises(ValueError, match="class_weight must not require a gradient"):
        linear_cross_entropy(input, weight, target, weight=torch.ones(V).double().requires_grad_())
    with pytest.raises(ValueError, match="its name here is weight"):
        linear_cross_entropy(input, weight, target, class_weight=torch.ones(V))
    with pytest.raises(ValueError, match="bias must be left out, got one: its name here is lin"):
        linear_cross_entropy(input, weight, target, bias=torch.zeros(V))
    with pytest.raises(ValueError, match="options must be left out, got some: backend and chunk"):
        linear_cross_entropy(input, weight, target, options=None)


def test_further_options_are_those_of_the_mixture_loss(tensors):
    input, weight, _ = tensors
    target = torch.arange(N) % V
    loss = linear_cross_entropy(input, weight, target, z_loss=0.1, logit_scale=0.5)
    logits = 0.5 * F.linear(input, weight)
    want = F.cross_entropy(logits, target) + 0.1 * logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(loss, want)
