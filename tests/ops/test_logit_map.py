"""The elementwise maps: value and slope against finite differences, and as part of the loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from highrank.ops.logit_map import (
    GeneralizedSigsoftmax,
    PiecewiseLinear,
    Softcap,
    parse_logit_map,
    piecewise_linear,
)
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy


class Squashed:
    """A map of the test's own: φ(z) = z + sin(z) / 2, strictly increasing."""

    def __call__(self, logits):
        return logits + torch.sin(logits) / 2

    def with_slope(self, logits):
        return self(logits), 1 + torch.cos(logits) / 2


MAPS = [
    Softcap(3.0),
    GeneralizedSigsoftmax(),
    GeneralizedSigsoftmax(-1.5, 2.5),
    PiecewiseLinear(7, 5.0, dtype=torch.float64),
    Squashed(),
]


@pytest.mark.parametrize("logit_map", MAPS, ids=lambda m: type(m).__name__)
def test_the_slope_is_that_of_the_value(logit_map):
    logits = torch.linspace(-9, 9, 41, dtype=torch.float64).requires_grad_()
    assert gradcheck(logit_map, logits)
    (want,) = torch.autograd.grad(logit_map(logits).sum(), logits)
    value, slope = logit_map.with_slope(logits.detach().clone())
    torch.testing.assert_close(value, logit_map(logits.detach()))
    torch.testing.assert_close(slope, want)


def test_any_map_can_stand_in_the_loss_and_a_high_cap_is_none():
    context, weight = (torch.randn(9, 3, 4).double(), torch.randn(7, 4).double())
    context.requires_grad_(), weight.requires_grad_()
    log_weight, target = torch.randn(9, 3).double().log_softmax(-1), torch.randint(7, (9,))

    def solve(backend, logit_map):
        options = {"logit_map": logit_map, "backend": backend, "reduction": "sum"}
        loss = mixture_cross_entropy(context, log_weight, weight, target, **options)
        return loss, *torch.autograd.grad(loss, (context, weight))

    want = solve("reference", Squashed())
    for backend in ("fused", "chunked"):
        torch.testing.assert_close(solve(backend, Squashed()), want, rtol=1e-10, atol=1e-10)
    capped, plain = solve("auto", Softcap(1e6)), solve("auto", None)
    torch.testing.assert_close(capped, plain, rtol=1e-9, atol=1e-9)


def test_sigsoftmax_is_that_of_the_papers():
    z = torch.linspace(-5, 5, 21).double()
    bent = GeneralizedSigsoftmax()(z)
    torch.testing.assert_close(
        bent.softmax(-1), (z.exp() * z.sigmoid()) / (z.exp() * z.sigmoid()).sum()
    )
    c, k = -1.5, 2.5
    want = k * (z - c) + c - (k - 1) * F.softplus(z - c)
    torch.testing.assert_close(GeneralizedSigsoftmax(c, k)(z), want)
    torch.testing.assert_close(GeneralizedSigsoftmax(c, 1.0)(z), z)


@pytest.mark.parametrize("logit_map", MAPS[:4], ids=lambda m: type(m).__name__)
def test_extreme_logits_stay_finite_and_in_order(logit_map):
    z = torch.tensor([-300.0, -200.0, -1.0, 100.0, 200.0])
    value, slope = logit_map(z.to(torch.float64)), logit_map.with_slope(z.double())[1]
    assert value.isfinite().all() and slope.isfinite().all() and (value.diff() >= 0).all()
    assert value.log_softmax(-1).isfinite().all()


def slow_piecewise_linear(z, score, limit):
    """Walk along the segments, from the left."""
    slopes, width = F.softplus(score), 2 * limit / len(score)
    value = -limit + slopes[0] * (z + limit)
    for index in range(1, len(score)):
        knot = -limit + index * width
        value = value + (slopes[index] - slopes[index - 1]) * (z - knot).clamp(min=0)
    return value


@pytest.mark.parametrize("num_segments", [1, 2, 9])
def test_plif_is_a_walk_along_its_segments_in_values_and_gradients(num_segments):
    z = (3 * torch.randn(6, 5)).double().requires_grad_()
    score = torch.randn(num_segments).double().requires_grad_()
    got, want = piecewise_linear(z, score, 2.0), slow_piecewise_linear(z, score, 2.0)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    upstream = torch.randn_like(got)
    got, want = (torch.autograd.grad((upstream * x).sum(), (z, score)) for x in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert gradcheck(lambda z, score: piecewise_linear(z, score, 2.0), (z, score))


def test_plif_with_slopes_of_one_is_the_identity():
    plif = PiecewiseLinear(100_000)
    torch.nn.init.constant_(plif.score, math.log(math.e - 1))
    z = torch.linspace(-30, 30, 101)
    torch.testing.assert_close(plif(z), z, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "text, want",
    [
        ("sigsoftmax", GeneralizedSigsoftmax(0.0, 2.0)),
        ("gss:-1.5,2.5", GeneralizedSigsoftmax(-1.5, 2.5)),
        ("softcap:30", Softcap(30.0)),
    ],
)
def test_a_map_is_named_with_its_numbers(text, want):
    assert parse_logit_map(text) == want
    plif = parse_logit_map("plif:50,3")
    assert (plif.num_segments, plif.limit, parse_logit_map("plif").limit) == (50, 3.0, 20.0)


@pytest.mark.parametrize(
    "text", ["", "soft", "softcap", "gss:1", "gss:a,b", "sigsoftmax:2", "plif:x"]
)
def test_an_unknown_map_is_named(text):
    with pytest.raises(
        ValueError, match="^the map of logits must be sigsoftmax, gss:CENTRE,SLOPE,"
    ):
        parse_logit_map(text)


CAPS = (0, -1.0, math.inf, math.nan)


@pytest.mark.parametrize(
    "make, message",
    [
        *((lambda cap=cap: Softcap(cap), "cap must be positive and finite") for cap in CAPS),
        (lambda: GeneralizedSigsoftmax(0, -1), "centre must be finite and slope positive"),
        (lambda: PiecewiseLinear(0), "num_segments must be at least 1, got 0"),
        (lambda: PiecewiseLinear(5, -1), "limit must be positive and finite, got -1"),
    ],
)
def test_a_wrong_number_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
