"""Log-probabilities of all words: against the definition, SciPy, and the memory they may take."""

import importlib

import pytest
import scipy.special
import torch
from torch.autograd import gradcheck

from highrank.ops.mixture_log_prob import mixture_log_prob, reference

# `highrank.ops.mixture_log_prob` is the function; the module of that name is behind it.
module = importlib.import_module("highrank.ops.mixture_log_prob")
N, K, E, V = 9, 3, 4, 7


def make_inputs(shape=(N,), bias=True, scale=1.0):
    log_weight = torch.randn(*shape, K, dtype=torch.float64).log_softmax(-1)
    sizes = [(*shape, K, E), (V, E), *[(V,)] * bias]
    context, *others = (scale * torch.randn(size, dtype=torch.float64) for size in sizes)
    return [t.requires_grad_() for t in (context, log_weight, *others)]


def value_and_gradients(function, inputs):
    log_p = function(*inputs)
    upstream = torch.linspace(-1, 2, log_p.numel(), dtype=torch.float64).view_as(log_p)
    upstream = upstream.where(log_p.detach() > -torch.inf, 0.0).to(log_p.dtype)
    return log_p.detach(), *torch.autograd.grad(log_p, inputs, upstream)


@pytest.fixture(params=[1, 2, N, None], ids=lambda n: f"{n} a chunk" if n else "one chunk")
def tokens_per_chunk(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(module, "CHUNK_BYTES", request.param * V * 8)
        monkeypatch.setattr(module, "MOST_BYTES", 1)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("shape", [(N,), (), (0,), (2, 3)], ids=str)
def test_agrees_with_the_definition(tokens_per_chunk, shape, bias, scale):
    inputs = make_inputs(shape, bias, scale)
    got = value_and_gradients(mixture_log_prob, inputs)
    for a, b in zip(got, value_and_gradients(reference, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_the_definition_is_the_log_of_the_weighted_softmaxes():
    context, log_weight, weight, bias = (t.detach() for t in make_inputs())
    prob = scipy.special.softmax((context @ weight.T + bias).numpy(), axis=-1)
    want = (log_weight.exp()[..., None] * torch.from_numpy(prob)).sum(-2).log()
    torch.testing.assert_close(reference(context, log_weight, weight, bias), want)
    # Shapes are known without numbers.
    assert mixture_log_prob(*(t.to("meta") for t in make_inputs())).shape == (N, V)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_it_is_a_distribution_with_the_gradients_of_finite_differences(tokens_per_chunk, bias):
    assert gradcheck(mixture_log_prob, make_inputs((3,), bias))
    total = mixture_log_prob(*make_inputs(bias=bias, scale=30.0)).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-13)


def test_memory_layout_does_not_matter_and_vmap_is_a_loop():
    context, log_weight, weight, bias = make_inputs((4, N))
    want = mixture_log_prob(context, log_weight, weight, bias)
    strided = context.mT.contiguous().mT, log_weight.mT.contiguous().mT, weight.T.contiguous().T
    torch.testing.assert_close(mixture_log_prob(*strided, bias), want)
    over = torch.vmap(mixture_log_prob, (0, 0, None, None))
    torch.testing.assert_close(over(context, log_weight, weight, bias), want)


def test_an_impossible_word_has_minus_infinity_and_no_gradient(tokens_per_chunk):
    *inputs, bias = make_inputs()
    inputs.append(bias.detach().index_fill(0, torch.tensor([2, 5]), -torch.inf).requires_grad_())
    log_p, *gradients = value_and_gradients(mixture_log_prob, inputs)
    assert (log_p == -torch.inf).nonzero()[:, 1].unique().tolist() == [2, 5]
    assert (gradients[2][[2, 5]] == 0).all() and (gradients[3][[2, 5]] == 0).all()
    possible = [0, 1, 3, 4, 6]
    fewer = [*inputs[:2], *(t.detach()[possible].requires_grad_() for t in inputs[2:])]
    upstream = torch.ones(N, len(possible), dtype=torch.float64)
    got = torch.autograd.grad(mixture_log_prob(*inputs)[:, possible], inputs[0], upstream)
    want = torch.autograd.grad(reference(*fewer), inputs[0], upstream)
    torch.testing.assert_close(got, want)


def test_a_component_without_weight_gets_no_gradient(tokens_per_chunk):
    context, log_weight, *others = make_inputs()
    log_weight.data[:, 1] = -torch.inf
    inputs = [context, log_weight, *others]
    log_p, d_context, d_log_weight, *_ = value_and_gradients(mixture_log_prob, inputs)
    assert log_p.isfinite().all() and d_context.isfinite().all()
    assert (d_context[:, 1] == 0).all() and (d_log_weight[:, 1] == 0).all()
    context.data[2, 0, 0] = torch.nan
    assert mixture_log_prob(*inputs).isnan().any(-1).nonzero().tolist() == [[2]]


def test_bfloat16_gives_float32_and_is_no_worse_than_the_definition():
    half = [t.detach().bfloat16().requires_grad_() for t in make_inputs()]
    truth = value_and_gradients(reference, [t.detach().double().requires_grad_() for t in half])
    got, slow = value_and_gradients(mixture_log_prob, half), value_and_gradients(reference, half)
    assert got[0].dtype == torch.float32
    for mine, its, true in zip(got, slow, truth, strict=True):
        error, allowed = (mine - true).abs().max(), (its - true).abs().max()
        assert error <= allowed + 2**-8 * true.abs().max()


def test_autocast_works_forward_and_backward():
    inputs = [t.detach().float().requires_grad_() for t in make_inputs()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_p, *gradients = value_and_gradients(mixture_log_prob, inputs)
    assert log_p.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    torch.testing.assert_close(log_p, reference(*inputs), rtol=0.02, atol=0.02)


def test_many_small_contributions_do_not_stagnate_in_bfloat16(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    one = [t.detach().bfloat16().requires_grad_() for t in make_inputs((1,))]
    many = [one[0].expand(1000, K, E), one[1].expand(1000, K), *one[2:]]
    got, want = (
        torch.autograd.grad(mixture_log_prob(*inputs)[:, 0].sum(), one[2])[0].float()
        for inputs in (many, one)
    )
    torch.testing.assert_close(got, 1000 * want, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("training", [False, True])
def test_one_table_of_words_by_tokens_is_made_and_none_by_components(watch, monkeypatch, training):
    N, V = 60, 500
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * V * 4)
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    context, log_weight = torch.randn(N, K, 2), torch.randn(N, K).log_softmax(-1)
    weight, upstream = torch.randn(V, 2, requires_grad=training), torch.randn(N, V)
    with watch() as seen:
        log_p = mixture_log_prob(context, log_weight, weight)
        if training:
            log_p.backward(upstream)
    assert [size for size in seen.sizes if size > 4 * V] == [N * V]


def test_the_backward_pass_and_float64_do_not_care_for_autocast():
    log_weight = torch.zeros(1, 1, requires_grad=True)
    log_p = mixture_log_prob(torch.ones(1, 1, 1), log_weight, torch.tensor([[301.0], [300.0]]))
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(log_p[0, 0], log_weight)
    assert gradient.item() == pytest.approx(1.0)
    inputs = [t.detach() for t in make_inputs()]
    want = mixture_log_prob(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mixture_log_prob(*inputs), want)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (1, lambda t: t[:1], r"log_weight must be \(9, 3\), got \(1, 3\)"),
        (0, lambda t: t.float(), "weight must be torch.float32 as context is, or less precise"),
        (3, lambda t: t[:2], r"bias must be \(7,\), got \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(name, change, message):
    inputs = [t.detach() for t in make_inputs()]
    inputs[name] = change(inputs[name])
    with pytest.raises(ValueError, match=message):
        mixture_log_prob(*inputs)


def test_chunks_of_a_large_vocabulary_have_enough_rows_for_a_multiply():
    rows = {V: next(module.token_slices(1000, 4 * V)).stop for V in (10_000, 262_144, 2**22)}
    assert rows == {10_000: 209, 262_144: 64, 2**22: 4}
