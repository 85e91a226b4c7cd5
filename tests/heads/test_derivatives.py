"""Second derivatives, `torch.func` and forward mode: right in every head, also with −inf."""

import pytest
import torch
from contract import NAMES, gradients, make_head, make_window
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jvp

# torch itself loads a deprecated module for its transforms.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
RESULTS = ["log_prob", "mean", "none"]


@pytest.fixture(params=NAMES)
def head(request):
    return make_head(request.param).eval()


def as_function(head, result, past, target):
    """One number a window, so that its upstream gradient is a constant."""

    def function(hidden):
        if result != "log_prob":
            return head(hidden, target, result, **past).loss.sum()
        log_p = head(hidden, **past)
        return (log_p.masked_fill(log_p.isneginf(), 0.0) * weights).sum()

    weights = torch.randn(*target.shape, head.vocab_size).double()
    return function


@pytest.mark.parametrize("result", RESULTS)
def test_second_derivatives_are_those_of_finite_differences(head, result):
    hidden, target, past = make_window(head, 3, 2)
    if getattr(head, "bias", None) is not None:
        head.bias.data[target[0, 0]] = -torch.inf
    function = as_function(head, result, past, target)
    leaves = (hidden, *(p for p in head.parameters() if p.numel() and p.isfinite().all()))

    # gradcheck moves the parameters themselves, in place.
    def slope(*_):
        return torch.autograd.grad(function(hidden), hidden, create_graph=True)

    assert gradcheck(slope, leaves, nondet_tol=1e-9, fast_mode=True)
    assert gradgradcheck(function, hidden, nondet_tol=1e-9, fast_mode=True)


@pytest.mark.parametrize("result", RESULTS)
def test_torch_func_and_forward_mode_agree_with_autograd(head, result):
    hidden, target, past = make_window(head, 3, 2)
    function = as_function(head, result, past, target)
    if "ngram" in getattr(head, "beside", ()):
        with pytest.raises(ValueError, match="must be called outside of torch.func"):
            grad(function)(hidden.detach())
        return
    (want,) = torch.autograd.grad(function(hidden), hidden)
    plain, tangent = hidden.detach(), torch.randn_like(hidden)
    torch.testing.assert_close(grad(function)(plain), want)
    torch.testing.assert_close(jvp(function, (plain,), (tangent,))[1], (want * tangent).sum())
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(function(forward_ad.make_dual(plain, tangent))).tangent
    torch.testing.assert_close(moved, (want * tangent).sum())
    twice = grad(lambda x: grad(function)(x).square().sum())(plain)
    slope = torch.autograd.grad(function(hidden), hidden, create_graph=True)[0]
    torch.testing.assert_close(twice, gradients(slope.square().sum(), head, hidden)[0])
