"""Heads in half precision that are given float32 states: only the weights have fewer digits."""

import copy

import pytest
import torch
from contract import V, make_head

from highrank import head_kl
from highrank.ops import mixed_linear

NAMES = ["softmax, context", "softmax", "moc", "mos", "sparse-mos", "low-rank-mos", "mos+constant"]


@pytest.fixture(params=NAMES)
def heads(request, monkeypatch):
    """A head in bfloat16, and one of the same weights in float64."""
    monkeypatch.setattr(mixed_linear, "BLOCK_BYTES", 3 * 4 * 6)
    head = make_head(request.param).bfloat16().eval()
    return head, copy.deepcopy(head).double()


def hidden_of(head, dtype):
    torch.manual_seed(1)
    return torch.randn(5, 3, head.hidden_size).to(dtype).requires_grad_()


def test_everything_is_as_precise_as_the_states(heads):
    head, exact = heads
    x, y = hidden_of(head, torch.float32), hidden_of(head, torch.float64)
    target = torch.randint(V, (5, 3))
    close = {"rtol": 1e-5, "atol": 1e-5}
    log_p, want = head.log_prob(x), exact.log_prob(y)
    assert log_p.dtype == torch.float32
    torch.testing.assert_close(log_p.double(), want, **close)
    for block in (None, 1):
        found = head.per_token_log_probs(x, target, block)
        torch.testing.assert_close(
            found.double(), want.gather(-1, target[..., None])[..., 0], **close
        )
    assert torch.equal(head.predict(x), exact.predict(y))
    assert torch.equal(head.sample(x, temperature=0), exact.predict(y))
    assert head.sample(x).shape == target.shape


def test_gradients_are_those_of_float64_rounded_once(heads):
    head, exact = heads
    x, y = hidden_of(head, torch.float32), hidden_of(head, torch.float64)
    target = torch.randint(V, (5, 3))
    head(x, target, chunk_bytes=1).loss.backward()
    exact(y, target).loss.backward()
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-6)
    for (name, p), q in zip(head.named_parameters(), exact.parameters(), strict=True):
        if q.grad is not None:
            largest = q.grad.abs().max().item()
            torch.testing.assert_close(
                p.grad.double(), q.grad, rtol=0.01, atol=1e-5 * largest, msg=name
            )


def test_divergences_too(heads):
    head, exact = heads
    x, y = hidden_of(head, torch.float32), hidden_of(head, torch.float64)
    found, want = head_kl(head, x, head, 2 * x), head_kl(exact, y, exact, 2 * y)
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-6)
