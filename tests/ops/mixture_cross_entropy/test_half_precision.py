"""float32, bfloat16 and autocast against the same numbers in float64."""

import pytest
import torch

from highrank.ops.logit_map import Softcap


def in_dtype(inputs, dtype):
    return type(inputs)(*(t.to(dtype) for t in inputs[:4]), inputs.target)


def error(got, truth):
    return [(g.double() - t).abs().max().item() for g, t in zip(got, truth, strict=True)]


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_float32_keeps_six_digits(problem, solve, agree, way, scale):
    inputs = problem((200,), E=16, V=100, scale=scale)
    got, want = (
        solve(in_dtype(inputs, torch.float32), chunk_bytes=10_000, **way),
        solve(inputs, **way),
    )
    torch.testing.assert_close(got[0].double(), want[0], rtol=1e-6, atol=1e-6)
    agree([g.double() for g in got], want, tolerance=5e-6)


@pytest.mark.parametrize("logit_map", [None, Softcap(5.0)], ids=["", "softcap"])
def test_bfloat16_is_no_worse_than_the_reference_in_bfloat16(problem, solve, fast_way, logit_map):
    half = in_dtype(problem((50,), E=16, V=100), torch.bfloat16)
    half = half._replace(log_weight=half.log_weight.float())
    # The truth is that of the rounded inputs.
    truth = solve(in_dtype(half, torch.float64), logit_map=logit_map, **fast_way)
    got = solve(half, logit_map=logit_map, chunk_bytes=10_000, **fast_way)
    reference = solve(half, logit_map=logit_map, **(fast_way | {"backend": "reference"}))
    for mine, its, true in zip(error(got, truth), error(reference, truth), truth, strict=True):
        assert mine <= its + 2**-8 * true.abs().max().item()
    for found in (got, reference):
        assert [x.dtype for x in found] == [torch.float32, *(t.dtype for t in half[:4])]


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


def test_many_small_contributions_do_not_stagnate_in_bfloat16(problem, solve, backend):
    one = in_dtype(problem((1,), K=2, E=4, V=3), torch.bfloat16)
    many = one._replace(
        context=one.context.expand(700, 2, 4),
        log_weight=one.log_weight.expand(700, 2),
        target=one.target.expand(700),
    )
    options = {"backend": backend, "reduction": "sum", "chunk_bytes": 1}
    got, want = solve(many, **options)[3].float(), 700 * solve(one, **options)[3].float()
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


def test_autocast_gives_what_bfloat16_gives_and_leaves_float64(problem, solve, agree, way):
    inputs = in_dtype(problem(), torch.float32)
    half = in_dtype(inputs, torch.bfloat16)._replace(log_weight=inputs.log_weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, exact = solve(inputs, **way), solve(problem(), **way)
    assert all(x.dtype == torch.float32 for x in got)
    agree(got, [g.float() for g in solve(half, **way)])
    assert (got[0] - solve(inputs, **way)[0]).abs().max() > 1e-5
    agree(exact, solve(problem(), **way))
