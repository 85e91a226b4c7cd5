"""float32, bfloat16 and autocast against the same numbers in float64."""

import pytest
import torch

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy


def in_dtype(inputs, dtype):
    return type(inputs)(*(t.to(dtype) for t in inputs[:4]), inputs.target)


def error(got, truth):
    return [(g.double() - t).abs().max().item() for g, t in zip(got, truth, strict=True)]


def test_float32_keeps_six_digits_of_the_loss(problem, solve, way):
    inputs = problem((200,), E=16, V=100, scale=10 / 4)
    got = solve(in_dtype(inputs, torch.float32), chunk_bytes=10_000, **way)[0]
    torch.testing.assert_close(got.double(), solve(inputs, **way)[0], rtol=1e-6, atol=1e-6)


def test_float32_gradients_are_those_of_float64(problem, solve, agree, way):
    inputs = problem((50,), E=16, V=100)
    got = solve(in_dtype(inputs, torch.float32), chunk_bytes=10_000, **way)
    agree([g.double() for g in got], solve(inputs, **way), tolerance=3e-6)


@pytest.mark.parametrize("logit_map", [None, Softcap(5.0)], ids=["", "softcap"])
def test_bfloat16_is_no_worse_than_the_reference_in_bfloat16(problem, solve, fast_way, logit_map):
    half = in_dtype(problem((50,), E=16, V=100), torch.bfloat16)
    # The truth is that of the rounded inputs.
    truth = solve(in_dtype(half, torch.float64), logit_map=logit_map, **fast_way)
    got = solve(half, logit_map=logit_map, chunk_bytes=10_000, **fast_way)
    reference = solve(half, logit_map=logit_map, **(fast_way | {"backend": "reference"}))
    for mine, its, true in zip(error(got, truth), error(reference, truth), truth, strict=True):
        assert mine <= its + 2**-8 * true.abs().max().item()


def test_losses_of_bfloat16_are_in_float32_and_gradients_in_the_dtype_of_their_input(
    problem, solve, way
):
    half = in_dtype(problem(), torch.bfloat16)
    half = half._replace(log_weight=half.log_weight.float())
    loss, *gradients = solve(half, **way)
    assert loss.dtype == torch.float32
    assert [g.dtype for g in gradients] == [t.dtype for t in half[:4]]


def test_log_weights_may_be_more_precise_than_contexts(problem, solve, agree, way):
    single = in_dtype(problem(), torch.float32)
    mixed = single._replace(log_weight=single.log_weight.double())
    got, want = solve(mixed, **way), solve(single, **way)
    assert got[2].dtype == torch.float64
    agree([g.double() for g in got], [w.double() for w in want], tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("logit_map", [None, Softcap(300.0)], ids=["", "softcap"])
def test_a_tiny_probability_of_large_products_that_cancel_is_the_reference_s(
    dtype, logit_map, problem, solve, agree, fast_way
):
    """Logits of 100 and 0, from products of 10,000: the multiply rounds once, at its end."""
    inputs = problem((1,), K=2, E=2, V=2)._replace(
        context=torch.tensor([[[100.0, 100.0], [50.0, 49.0]]]),
        log_weight=torch.tensor([[0.3, 0.7]]).log(),
        weight=torch.tensor([[100.0, -99.0], [0.0, 0.0]]),
        bias=torch.tensor([0.0, 0.5]),
        target=torch.tensor([1]),
    )
    half = in_dtype(inputs, dtype)
    got = solve(half, logit_map=logit_map, **fast_way)
    want = solve(half, logit_map=logit_map, **(fast_way | {"backend": "reference"}))
    agree([g.double() for g in got], [w.double() for w in want], tolerance=1e-2)


def test_float64_stays_float64_under_autocast(problem, solve, agree, way):
    inputs = problem()
    want = solve(inputs, **way)
    with torch.autocast("cpu", torch.bfloat16):
        got = solve(inputs, **way)
    agree(got, want)


def test_many_small_contributions_do_not_stagnate_in_bfloat16(problem, solve, backend):
    one = in_dtype(problem((1,), K=2, E=4, V=3), torch.bfloat16)
    many = one._replace(
        context=one.context.expand(2000, 2, 4),
        log_weight=one.log_weight.expand(2000, 2),
        target=one.target.expand(2000),
    )
    options = {"backend": backend, "reduction": "sum", "chunk_bytes": 1}
    got, want = solve(many, **options)[3].float(), 2000 * solve(one, **options)[3].float()
    torch.testing.assert_close(got, want, rtol=0.02, atol=0)


def test_a_mean_over_many_tokens_keeps_the_gradients_of_float16(problem, solve, backend):
    # As a gradient scaler does it: the upstream gradient makes up for the division by N.
    half = in_dtype(problem((30_000,), K=8, V=5), torch.float16)
    half = half._replace(log_weight=half.log_weight.float())
    upstream = torch.tensor(30_000.0)
    got = solve(half, upstream=upstream, backend=backend)
    truth = solve(in_dtype(half, torch.float64), upstream=upstream.double(), backend=backend)
    for mine, true in zip(got, truth, strict=True):
        assert (mine.double() - true).norm() < 0.003 * true.norm()


def test_autocast_multiplies_in_bfloat16_and_returns_float32(problem, way):
    inputs = in_dtype(problem(), torch.float32)
    *leaves, target = (t.requires_grad_() if t.is_floating_point() else t for t in inputs)
    context, log_weight, weight, bias = leaves
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **way)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)


def test_autocast_gives_what_bfloat16_gives(problem, solve, agree, way):
    inputs = in_dtype(problem(), torch.float32)
    half = in_dtype(inputs, torch.bfloat16)._replace(log_weight=inputs.log_weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = solve(inputs, **way)
    agree(got, [g.float() for g in solve(half, **way)])
    assert (got[0] - solve(inputs, **way)[0]).abs().max() > 1e-5


@pytest.mark.parametrize("backend", ["fused", "chunked"])
def test_a_scaled_loss_keeps_small_gradients_alive_in_float16(backend):
    N, K, E, V = 4000, 2, 4, 20
    context = torch.randn(N, K, E).half().requires_grad_()
    log_weight, weight = torch.zeros(N, K).log_softmax(-1), torch.randn(V, E).half()
    target = torch.randint(V, (N,))
    loss = mixture_cross_entropy(context, log_weight, weight, target, backend=backend)
    (gradient,) = torch.autograd.grad(loss * 65536.0, context)
    assert (gradient == 0).float().mean() < 0.01
