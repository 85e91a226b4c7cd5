"""The elementwise maps: value and slope against finite differences, and as part of the loss."""

import pytest
import torch
from torch.autograd import gradcheck

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy


class Squashed:
    """A map of the test's own: φ(z) = z + sin(z) / 2, strictly increasing."""

    def __call__(self, logits):
        return logits + torch.sin(logits) / 2

    def with_slope(self, logits):
        return self(logits), 1 + torch.cos(logits) / 2


@pytest.mark.parametrize("cap", [0, -1.0, float("inf"), float("nan")])
def test_a_cap_is_positive_and_finite(cap):
    with pytest.raises(ValueError, match="^cap must be positive and finite, got"):
        Softcap(cap)


@pytest.mark.parametrize("logit_map", [Softcap(3.0), Squashed()])
def test_the_slope_is_that_of_the_value(logit_map):
    logits = torch.linspace(-9, 9, 41, dtype=torch.float64).requires_grad_()
    assert gradcheck(logit_map, logits)
    (want,) = torch.autograd.grad(logit_map(logits).sum(), logits)
    value, slope = logit_map.with_slope(logits.detach().clone())
    torch.testing.assert_close(value, logit_map(logits.detach()))
    torch.testing.assert_close(slope, want)


@pytest.mark.parametrize("backend", ["fused", "chunked"])
def test_any_map_can_stand_in_the_loss(backend):
    torch.manual_seed(0)
    context = torch.randn(9, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    log_weight = torch.randn(9, 3, dtype=torch.float64).log_softmax(-1)
    target = torch.randint(7, (9,))

    def solve(backend):
        options = {"logit_map": Squashed(), "backend": backend, "reduction": "sum"}
        loss = mixture_cross_entropy(context, log_weight, weight, target, **options)
        return loss, *torch.autograd.grad(loss, (context, weight))

    torch.testing.assert_close(solve(backend), solve("reference"), rtol=1e-10, atol=1e-10)


def test_a_high_cap_is_no_cap():
    context, weight = torch.randn(9, 3, 4).double(), torch.randn(7, 4).double()
    log_weight, target = torch.randn(9, 3).double().log_softmax(-1), torch.randint(7, (9,))
    capped = mixture_cross_entropy(context, log_weight, weight, target, logit_map=Softcap(1e6))
    plain = mixture_cross_entropy(context, log_weight, weight, target)
    torch.testing.assert_close(capped, plain, rtol=1e-9, atol=0)
