"""Every head of `HEADS`, new ones included, where numbers or batches are unusual.

T time, B sequences, V vocabulary.
"""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

from highrank.build import build_head
from highrank.config import HeadConfig
from highrank.heads import HEADS, Head
from highrank.heads.adaptive.head import AdaptiveHead

T, B, V = 5, 3, 11
OPTIONS = {
    "pointer": {"num_states": 4},
    "adaptive-pointer": {"num_states": 4},
    "multi-sense": {"num_frequent": 4},
    "mixtape": {"frequent_fraction": 0.3},
}
MAPS = {f"pointwise, {name}": {"logit_map": name} for name in ("plif:7,2", "softcap:3")}
# torch itself loads a deprecated module for its transforms.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@pytest.fixture(params=[*HEADS, *MAPS])
def make(request, config):
    """A head with random parameters of no special size."""
    name = request.param

    def made(vocab_size=V, dtype=torch.float64):
        options = MAPS[name] if name in MAPS else OPTIONS.get(name, {})
        head = HeadConfig(kind=name.split(",")[0], num_components=4, options=options, dropout=0.0)
        counts = [7 * token % vocab_size for token in range(vocab_size)]
        found = build_head(replace(config, head=head), vocab_size, token_counts=counts).to(dtype)
        for parameter in found.parameters():
            torch.nn.init.normal_(parameter)
        return found

    return made


def window(head, length=T, batch_size=B):
    """Hidden states, targets, and what they follow."""
    hidden = torch.randn(length, batch_size, head.hidden_size, dtype=head_dtype(head))
    tokens, target = torch.randint(head.vocab_size, (2, length, batch_size))
    past = {"tokens": tokens, "state": head.initial_state(batch_size)} if head.is_stateful else {}
    return hidden.requires_grad_(), target, past


def head_dtype(head):
    return next(head.parameters()).dtype


def gradients(result, head, hidden):
    leaves = [hidden, *(p for p in head.parameters() if p.numel())]
    found = torch.autograd.grad(result, leaves, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, leaves, strict=True)]


@pytest.mark.parametrize("shape", [(0, B), (T, 0), (T, B)], ids=["no time", "no batch", "ignored"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_without_targets_the_loss_is_torchs_and_the_gradients_are_zero(make, shape, reduction):
    head = make()
    hidden, target, past = window(head, *shape)
    output, loss = head(hidden, torch.full_like(target, -100), reduction, **past)
    assert loss.isnan() if reduction == "mean" else not loss.any()
    assert output.shape == shape and not output.any()
    assert not any(g.any() for g in gradients(loss.sum(), head, hidden))


def test_one_token_is_certain(make):
    head = make(vocab_size=1)
    hidden, target, past = window(head)
    torch.testing.assert_close(head.log_prob(hidden, **past), torch.zeros(T, B, 1).double())
    assert head(hidden, target, **past).loss.abs() < 1e-12
    assert not head.sample(hidden, **past).any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_impossible_targets_have_no_gradient_whatever_the_reduction(make, reduction):
    head = make()
    hidden, target, past = window(head)
    with torch.no_grad():
        head.bias[[0, 3, 7]] = -torch.inf
    output, loss = head(hidden, target, reduction, **past)
    impossible = output == -torch.inf
    possible = head(hidden, target.masked_fill(impossible, -100), reduction, **past).loss
    both = [gradients(x.sum(), head, hidden) for x in (loss, possible)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-10)
    assert loss.isinf().any() == impossible.any()
    # And the possible ones of an impossible token's row have theirs.
    log_p = head.log_prob(hidden, **past)
    assert all(g.isfinite().all() for g in gradients(log_p[log_p.isfinite()].sum(), head, hidden))


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_tiny_and_huge_parameters_have_the_loss_of_log_prob(make, scale):
    head = make()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(scale)
    hidden, target, past = window(head)
    log_p = head.log_prob(hidden, **past)
    want = -log_p.gather(-1, target[..., None]).mean()
    loss = head(hidden, target, **past).loss
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    got, wanted = (gradients(x, head, hidden) for x in (loss, want))
    for one, other in zip(got, wanted, strict=True):
        size = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one / size, other / size, rtol=0, atol=1e-6)


def test_a_state_that_is_no_number_has_a_loss_that_is_none(make):
    head = make()
    hidden, target, past = window(head)
    hidden.data[1, 1] = torch.nan
    assert head(hidden, target, **past).loss.isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_trains(make, dtype):
    head = make(dtype=dtype)
    hidden, target, past = window(head)
    loss = head(hidden, target, **past).loss
    found = gradients(loss, head, hidden)
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(g.dtype == dtype and g.isfinite().all() for g in found)


def test_any_part_can_be_trained_alone(make):
    head = make()
    hidden, target, past = window(head)
    want = gradients(head(hidden, target, **past).loss, head, hidden)[1:]
    parameters = [p for p in head.parameters() if p.numel()]
    for index, parameter in enumerate(parameters):
        for p in parameters:
            p.requires_grad_(p is parameter)
        loss = head(hidden.detach(), target, **past).loss
        if want[index].any():
            found = torch.autograd.grad(loss, parameter)[0]
            torch.testing.assert_close(found, want[index], rtol=0, atol=1e-10)


def test_strides_do_not_matter(make):
    head = make()
    hidden, target, past = window(head)
    strided = hidden.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    want = head(hidden, target, **past)
    assert not strided.is_contiguous()
    torch.testing.assert_close(head(strided, target.T.contiguous().T, **past), want)


def test_it_can_be_checkpointed_and_gone_through_twice(make):
    head = make()
    hidden, target, past = window(head)
    want = gradients(head(hidden, target, **past).loss, head, hidden)
    loss = checkpoint(lambda h: head(h, target, **past).loss, hidden, use_reentrant=False)
    torch.testing.assert_close(gradients(loss, head, hidden), want, rtol=0, atol=1e-12)
    loss = head(hidden, target, **past).loss
    (3 * loss).backward(retain_graph=True)
    loss.backward()
    got = [p.grad for p in head.parameters() if p.numel()]
    for one, other in zip(got, want[1:], strict=True):
        assert one is None or torch.allclose(one, 4 * other, rtol=0, atol=1e-12)


def test_an_ensemble_is_its_members(make):
    """Their losses and gradients, of torch.func.vmap over stacked parameters."""
    heads = [make(), make()]
    hidden, target, past = window(heads[0])
    target[1, 1] = -100
    parameters, buffers = stack_module_state(heads)

    def loss_of(parameters, buffers):
        given = (parameters, buffers)
        return functional_call(heads[0], given, (hidden.detach(), target), past).loss

    got = vmap(grad(loss_of))({n: p.detach() for n, p in parameters.items()}, buffers)
    for index, head in enumerate(heads):
        loss, named = head(hidden, target, **past).loss, dict(head.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, found, strict=True):
            if gradient is not None:
                torch.testing.assert_close(got[name][index], gradient, rtol=0, atol=1e-10)


def test_shapes_are_known_on_the_meta_device(make):
    head = make().to("meta")
    hidden, target, past = window(head)
    target = target.to("meta")
    past = {"tokens": target, "state": past["state"]} if past else {}
    loss = head(hidden.detach().to("meta"), target, **past).loss
    loss.backward()
    assert loss.shape == () and all(p.grad is None or p.grad.is_meta for p in head.parameters())
    assert head.log_prob(hidden.detach().to("meta"), **past).shape == (T, B, V)


def test_on_an_accelerator_the_host_never_waits(make, syncs, monkeypatch):
    """But for the adaptive heads, whose tails have as many rows as there are targets in them."""
    head = make()
    if isinstance(head, AdaptiveHead):
        pytest.skip("the sizes of tails depend on the targets")
    hidden, target, past = window(head)
    target[1, 1] = -100
    want = head(hidden, target, **past)
    paths = ("loss.targets", "mixture_cross_entropy.reducer", "row_blocks")
    modules = [f"highrank.ops.{name}" for name in (*paths, "streamed_cross_entropy")]
    for module in (*modules, "highrank.ops.linear_cross_entropy", "highrank.heads.multi_sense"):
        monkeypatch.setattr(f"{module}.is_static", lambda tensor: True)
    for module in ("highrank.ops.mixture_cross_entropy", "highrank.heads.base"):
        monkeypatch.setattr(f"{module}.check_targets", lambda *_: None)
    with syncs() as mode:
        got = head(hidden, target, **past)
        got.loss.backward()
    torch.testing.assert_close(got, want)
    assert mode.seen == []


def test_it_is_resized_or_says_that_it_cannot_be(make):
    head = make()
    if type(head).resize is Head.resize:
        with pytest.raises(ValueError, match="cannot be resized"):
            head.resize(14)
        return
    weight = next(p for name, p in head.named_parameters() if name.endswith("weight")).clone()
    for vocab_size in (14, 8):
        head.resize(vocab_size)
        hidden, target, past = window(head)
        head(hidden, target, **past).loss.backward()
        assert head.log_prob(hidden, **past).shape == (T, B, vocab_size) == (T, B, len(head.bias))
    after = next(p for name, p in head.named_parameters() if name.endswith("weight"))
    assert torch.equal(after, weight[:8]) and after.grad.any()
