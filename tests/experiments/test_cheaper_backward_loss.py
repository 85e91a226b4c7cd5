"""The loss stays exact; a filter's error is bounded; a sample's gradient is right on average.

N tokens, K components, E embedding size, V vocabulary.
"""

from functools import partial

import pytest
import torch

from highrank.experiments.cheaper_backward_loss import (
    filtered,
    keep_probability,
    sampled,
    selective_loss,
)
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_cross_entropy.stream import Inputs

N, K, E, V = 11, 5, 4, 7
SCALE = 0.3
TINY_CHUNK = 3 * K * V * 8


def make_inputs(*, bias=True, softcap=None, spread=1.0):
    def normal(*size):
        return spread * torch.randn(*size, dtype=torch.float64)

    return Inputs(
        normal(N, K, E).requires_grad_(),
        (2 * normal(N, K)).log_softmax(-1).requires_grad_(),
        normal(V, E).requires_grad_(),
        normal(V).requires_grad_() if bias else None,
        torch.randint(V, (N,)),
        softcap,
    )


def exact_loss(inputs):
    context, log_weight, weight, bias, target, softcap = inputs
    return SCALE * mixture_cross_entropy(
        context, log_weight, weight, target, bias=bias, softcap=softcap, reduction="sum"
    )


def solve(loss, inputs):
    """The loss and its gradients in context, log_weight, weight and, if there is one, bias."""
    return loss.detach(), *torch.autograd.grad(loss, [x for x in inputs[:4] if x is not None])


def parts(inputs):
    """By the definitions: responsibilities (N, K), slopes q - e_y (N, K, V)."""
    context, log_weight, weight, bias, target, _ = inputs
    q = (context @ weight.T + bias).softmax(-1)  # (N, K, V)
    e_y = torch.nn.functional.one_hot(target, V)[:, None]  # (N, 1, V)
    r = (log_weight.exp() * (q * e_y).sum(-1)).detach()
    return r / r.sum(-1, keepdim=True), (q - e_y).detach()


def responsibilities(num_tokens=1000, num_components=10):
    return (3 * torch.randn(num_tokens, num_components, dtype=torch.float64)).softmax(-1)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"softcap": 2.0}])
@pytest.mark.parametrize("chunk_bytes", [None, TINY_CHUNK])
def test_keeping_every_row_is_the_exact_loss(options, chunk_bytes):
    inputs = make_inputs(**options)
    got = solve(selective_loss(inputs, lambda r: r, SCALE, chunk_bytes), inputs)
    torch.testing.assert_close(got, solve(exact_loss(inputs), inputs))


@pytest.mark.parametrize(
    "select", [partial(filtered, threshold=0.2), partial(sampled, num_kept=2), torch.zeros_like]
)
def test_the_loss_and_the_gradient_of_the_log_weights_stay_exact(select):
    inputs = make_inputs()
    got = solve(selective_loss(inputs, select, SCALE, TINY_CHUNK), inputs)
    want = solve(exact_loss(inputs), inputs)
    assert got[0] == want[0]
    torch.testing.assert_close(got[2], want[2])
    assert not torch.allclose(got[3], want[3])


def test_an_upstream_gradient_scales_the_gradients():
    inputs = make_inputs()
    select = partial(filtered, threshold=0.2)
    once = solve(selective_loss(inputs, select, SCALE), inputs)
    thrice = solve(3 * selective_loss(inputs, select, SCALE), inputs)
    torch.testing.assert_close(thrice, tuple(3 * x for x in once))


def test_an_impossible_target_has_no_gradient():
    inputs = make_inputs()
    bias = inputs.bias.detach().clone()
    bias[inputs.target[0]] = -torch.inf
    inputs = inputs._replace(bias=bias.requires_grad_())
    loss, *gradients = solve(selective_loss(inputs, partial(sampled, num_kept=2)), inputs)
    assert loss == torch.inf
    assert all(g.isfinite().all() for g in gradients)
    assert not gradients[0][0].any()


def test_filtered_contexts_miss_exactly_the_dropped_rows():
    inputs, threshold = make_inputs(), 0.2
    r, slope = parts(inputs)
    select = partial(filtered, threshold=threshold)
    got = solve(selective_loss(inputs, select, SCALE, TINY_CHUNK), inputs)[1]
    want = solve(exact_loss(inputs), inputs)[1]
    missing = SCALE * (r * (r < threshold))[..., None] * (slope @ inputs.weight)  # (N, K, E)
    torch.testing.assert_close(want - got, missing.detach())


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.5])
def test_the_filter_keeps_its_bounds(threshold):
    inputs = make_inputs()
    r, slope = parts(inputs)
    dropped = r < threshold
    u_r = SCALE * r[dropped]  # (R,)
    slope_norm, h_norm = slope.norm(dim=-1)[dropped], inputs.context.norm(dim=-1)[dropped]
    got = solve(selective_loss(inputs, partial(filtered, threshold=threshold), SCALE), inputs)
    want = solve(exact_loss(inputs), inputs)
    of_weight, of_bias = (torch.dist(a, b) for a, b in zip(got[3:], want[3:], strict=True))
    assert 0 < of_weight <= (u_r * slope_norm * h_norm).sum()
    assert (u_r * slope_norm * h_norm).sum() <= 2**0.5 * (u_r * h_norm).sum()
    assert (u_r * h_norm).sum() <= threshold * (SCALE * h_norm).sum()
    assert 0 < of_bias <= (u_r * slope_norm).sum() <= 2**0.5 * u_r.sum()


def test_a_threshold_of_one_over_k_leaves_each_token_a_row():
    r = responsibilities()
    assert ((filtered(r, 1 / 10) > 0).sum(-1) >= 1).all()


@pytest.mark.parametrize("num_kept", [0.5, 1, 2.5, 3, 9])
def test_keep_probabilities_sum_to_the_rows_wanted(num_kept):
    r = responsibilities()
    q = keep_probability(r, num_kept)
    torch.testing.assert_close(q.sum(-1), torch.full((1000,), float(num_kept)).double())
    # min(1, c · r) with one c per token: rows below 1 have one ratio, and no row at 1 a higher one.
    c = (q / r).masked_fill(q == 1, -torch.inf).amax(-1, keepdim=True)  # (N, 1)
    torch.testing.assert_close(q, (c * r).clamp(max=1.0))


@pytest.mark.parametrize("num_kept", [10, 11.5])
def test_all_rows_are_kept_where_there_are_no_more(num_kept):
    r = responsibilities()
    assert torch.equal(sampled(r, num_kept), r)


def test_rows_without_responsibility_are_never_kept():
    r = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    q = keep_probability(r, 2)
    want = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])
    torch.testing.assert_close(q, want.double())
    assert sampled(r, 2).isfinite().all()


def test_a_sample_has_the_rows_wanted_and_weights_that_sum_to_one():
    weight = sampled(responsibilities(), 3)
    assert ((weight > 0).sum(-1) == 3).all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(1000).double())


def test_rows_are_kept_as_often_as_their_probability_says():
    r, num_draws = responsibilities(num_tokens=1), 20_000
    q = keep_probability(r, 3).squeeze(0)
    kept = (sampled(r.expand(num_draws, -1), 3) > 0).double().mean(0)
    error = (q * (1 - q) / num_draws).sqrt()  # (K,)
    assert ((kept - q).abs() <= 4 * error + 1e-12).all()


def test_the_mean_of_many_sampled_gradients_is_the_exact_gradient():
    # Rows of moderate probability, so that the standard errors can be estimated.
    inputs, num_draws = make_inputs(spread=0.25), 2000
    generator = torch.Generator().manual_seed(1)
    select = partial(sampled, num_kept=2, generator=generator)
    draws = [solve(selective_loss(inputs, select, SCALE), inputs) for _ in range(num_draws)]
    # One vector of everything: the loss, then all gradients.
    got = torch.stack([torch.cat([x.flatten() for x in draw]) for draw in draws])
    want = torch.cat([x.flatten() for x in solve(exact_loss(inputs), inputs)])
    error = got.std(0) / num_draws**0.5
    noisy = error > 1e-12
    torch.testing.assert_close(got.mean(0)[~noisy], want[~noisy])
    z = (got.mean(0) - want)[noisy] / error[noisy]
    assert len(z) > 150
    # As of normal numbers, if correlated ones: a spread near 1, and none far out.
    assert z.abs().max() < 4.5
    assert 0.5 < z.square().mean().sqrt() < 1.5
