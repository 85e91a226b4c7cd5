"""Every head as a module: precisions, autograd's tools, compilers, devices, memory, saving."""

import copy
import importlib

import pytest
import torch
from contract import (
    NAMES,
    PLAIN,
    B,
    D,
    T,
    V,
    gradients,
    make_head,
    make_window,
    new_head,
)
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

from highrank.heads import HEADS, Head, head_arguments, head_class
from highrank.heads.bases.adaptive import AdaptiveHead
from highrank.ops.loss import chunks
from highrank.signatures import help_of

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")
# One head of each way to a loss: compiling takes a second.
COMPILED = ("softmax", "mos", "mos+pointer", "mixtape", "pointwise, plif", "adaptive-mos", PLAIN)
# torch itself loads a deprecated module for its transforms.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def head(name):
    return make_head(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_precision_trains_with_a_loss_of_float32(name, dtype):
    head = new_head(name, dtype=dtype)
    hidden, target, past = make_window(head)
    loss = head(hidden, target, **past).loss
    found = gradients(loss, head, hidden)
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(g.dtype == dtype and g.isfinite().all() for g in found)
    assert head.log_prob(hidden, **past).dtype == torch.float32


def test_autocast_trains_float32_parameters(name):
    head = new_head(name)
    hidden, target, past = make_window(head)
    want = head(hidden, target, **past).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, log_p = head(hidden, target, **past).loss, head.log_prob(hidden, **past)
        head.sample(hidden, **past), head.predict(hidden, **past)
    assert loss.dtype == log_p.dtype == torch.float32
    assert all(g.isfinite().all() for g in gradients(loss + log_p[0, 0, 0], head, hidden))
    torch.testing.assert_close(loss, want, rtol=0.02, atol=0)


def test_any_part_can_be_trained_alone(head):
    hidden, target, past = make_window(head)
    want = gradients(head(hidden, target, **past).loss, head, hidden)[1:]
    parameters = [p for p in head.parameters() if p.numel()]
    for index, parameter in enumerate(parameters):
        for p in parameters:
            p.requires_grad_(p is parameter)
        loss = head(hidden.detach(), target, **past).loss
        if want[index].any():
            found = torch.autograd.grad(loss, parameter)[0]
            torch.testing.assert_close(found, want[index], rtol=0, atol=1e-10)


def test_strides_do_not_matter(head):
    hidden, target, past = make_window(head)
    strided = hidden.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    want = head(hidden, target, **past)
    assert not strided.is_contiguous()
    torch.testing.assert_close(head(strided, target.T.contiguous().T, **past), want)


def test_it_can_be_checkpointed_and_gone_through_twice(head):
    hidden, target, past = make_window(head)
    want = gradients(head(hidden, target, **past).loss, head, hidden)
    loss = checkpoint(lambda h: head(h, target, **past).loss, hidden, use_reentrant=False)
    torch.testing.assert_close(gradients(loss, head, hidden), want, rtol=0, atol=1e-12)
    loss = head(hidden, target, **past).loss
    (3 * loss).backward(retain_graph=True)
    loss.backward()
    got = [p.grad for p in head.parameters() if p.numel()]
    for one, other in zip(got, want[1:], strict=True):
        assert one is None or torch.allclose(one, 4 * other, rtol=0, atol=1e-12)


def test_an_ensemble_is_its_members(name):
    """Losses and gradients of torch.func.vmap over stacked parameters."""
    if "ngram" in name:
        pytest.skip("its table is looked up outside of torch")
    heads = [make_head(name), make_head(name)]
    hidden, target, past = make_window(heads[0])
    target[1, 1] = -100
    parameters, buffers = stack_module_state(heads)

    def loss_of(parameters, buffers):
        given = (parameters, buffers)
        return functional_call(heads[0], given, (hidden.detach(), target), past).loss

    got = vmap(grad(loss_of))({n: p.detach() for n, p in parameters.items()}, buffers)
    for index, head in enumerate(heads):
        loss, named = head(hidden, target, **past).loss, dict(head.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for key, gradient in zip(named, found, strict=True):
            if gradient is not None:
                torch.testing.assert_close(got[key][index], gradient, rtol=0, atol=1e-10)


# The compiler sets off torch's warnings against its own internals.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_is_as_eager_forward_and_backward(head, reduction):
    hidden, target, past = make_window(head)
    target[1, 1] = -100
    results = []
    for called in (head, torch.compile(head, backend="aot_eager")):
        output, loss = called(hidden, target, reduction, **past)
        results.append([output, loss, *gradients(loss.sum(), head, hidden)])
    torch.testing.assert_close(results[1], results[0])


def test_shapes_are_known_on_the_meta_device(name):
    head = new_head(name, device="meta")
    hidden, target = torch.randn(T, B, D).to("meta"), torch.ones(T, B).long().to("meta")
    past = {"tokens": target, "state": head.initial_state(B)} if head.is_stateful else {}
    loss = head(hidden, target, **past).loss
    loss.backward()
    assert loss.shape == () and all(p.grad is None or p.grad.is_meta for p in head.parameters())
    assert head.log_prob(hidden, **past).shape == (T, B, V)


def test_on_an_accelerator_the_host_never_waits(head, syncs, monkeypatch):
    """But for the adaptive heads, whose tails have as many rows as there are targets in them."""
    if isinstance(head, AdaptiveHead):
        pytest.skip("the sizes of tails depend on the targets")
    hidden, target, past = make_window(head)
    target[1, 1] = -100
    want = head(hidden, target, **past)
    paths = ("loss.targets", "mixture_cross_entropy.reducer", "row_blocks")
    modules = [f"highrank.ops.{path}" for path in (*paths, "streamed_cross_entropy")]
    modules += ["highrank.ops.linear_cross_entropy", "highrank.heads.bases.past"]
    for module in modules:
        monkeypatch.setattr(f"{module}.is_static", lambda tensor: True)
    for module in ("highrank.ops.mixture_cross_entropy", "highrank.heads.bases.head"):
        monkeypatch.setattr(f"{module}.check_targets", lambda *_: None)
    with syncs() as mode:
        got = head(hidden, target, **past)
        got.loss.backward()
    torch.testing.assert_close(got, want)
    assert mode.seen == []


def test_training_and_choosing_tokens_make_no_table_for_all_of_them(name, watch, monkeypatch):
    length, size = 120, 500
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 4 * 10 * size)
    monkeypatch.setattr(log_prob_module, "CHUNK_BYTES", 4 * 10 * size)
    monkeypatch.setattr(log_prob_module, "MOST_BYTES", 1)
    monkeypatch.setattr("highrank.ops.linear_cross_entropy.SMALL_BYTES", 0)
    head = new_head(name, vocab_size=size)
    hidden, target, past = make_window(head, length, 2)
    with watch() as seen:
        head(hidden, target, **past).loss.backward()
        head.predict(hidden, **past), head.sample(hidden, **past)
    assert max(seen.sizes) < 2 * length * size / 4


def test_it_is_saved_and_copied(name, head):
    other, twin = new_head(name).double(), copy.deepcopy(head)
    other.load_state_dict(head.state_dict())
    hidden, _, past = make_window(head)
    want = head.log_prob(hidden, **past)
    assert torch.equal(other.log_prob(hidden, **past), want)
    assert torch.equal(twin.log_prob(hidden, **past), want)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(head.log_prob(hidden, **past), want)


def test_a_head_made_on_the_meta_device_comes_to_life(name):
    head, usual = new_head(name, device="meta"), new_head(name)
    assert all(tensor.is_meta for tensor in head.state_dict().values())
    head.to_empty(device="cpu")
    if not hasattr(head, "reset_parameters"):
        return
    # Buffers come with a checkpoint, but for the order of an adaptive head.
    if not isinstance(head, AdaptiveHead):
        head.load_state_dict(dict(usual.named_buffers()), strict=False)
    for module in (head, usual):
        torch.manual_seed(1)
        module.reset_parameters()
    torch.testing.assert_close(head.state_dict(), usual.state_dict(), rtol=0, atol=0)


def test_a_tied_weight_is_the_parameter_itself(head):
    if getattr(head.core, "is_banded", False):
        pytest.skip("each band has a weight of its own")
    size = head.weight.shape[1] if hasattr(head, "weight") else head.embedding_size
    embedding = nn.Embedding(V, size).double()
    head.tie(embedding.weight)
    assert sum(p is embedding.weight for p in head.parameters()) == 1
    with pytest.raises(ValueError, match=rf"\({V}, {size}\), got \({V + 1}, {size}\)$"):
        head.tie(nn.Embedding(V + 1, size).weight)
    with pytest.raises(ValueError, match="weight must be an nn.Parameter, got Tensor"):
        head.tie(torch.zeros(V, size))


def test_it_is_resized_or_says_that_it_cannot_be(head):
    if type(head.core).resize is Head.resize:
        with pytest.raises(ValueError, match="cannot be resized"):
            head.resize(14)
        return

    def embedding():
        return next(p for key, p in head.named_parameters() if key.endswith("weight"))

    before = embedding().clone()
    for vocab_size in (14, 8):
        head.resize(vocab_size)
        hidden, target, past = make_window(head)
        head(hidden, target, **past).loss.backward()
        assert head.log_prob(hidden, **past).shape == (T, B, vocab_size)
        assert head.bias is None or len(head.bias) == vocab_size
    assert torch.equal(embedding(), before[:8]) and embedding().grad.any()


@pytest.mark.parametrize("kind", HEADS)
def test_help_explains_every_argument(kind):
    assert set(head_arguments(kind)) <= set(help_of(head_class(kind)))
    assert head_class(kind).default_components >= 1
