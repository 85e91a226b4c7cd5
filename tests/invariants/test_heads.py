"""Two routes to the same head, the same gradient, the same trajectory."""

import pytest
import torch
from torch import nn

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.ops.loss import chunks
from highrank.ops.mixture_cross_entropy import BACKENDS, mixture_loss

HEADS = pytest.mark.parametrize("kind", [Softmax, MixtureOfContexts, MixtureOfSoftmaxes])
T, B, D, V = 6, 5, 8, 13


def make_head(kind, **options):
    torch.manual_seed(0)
    sizes = (D, V) if kind is Softmax else (D, V, 3, 4)
    return kind(*sizes, dtype=torch.float64, **options)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(T, B, D, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(V, (T, B), generator=generator)


def trajectory(kind, optimizer_of):
    """The parameters after twenty steps, each on its own batch."""
    head = make_head(kind)
    optimizer = optimizer_of(head.parameters())
    for step in range(20):
        optimizer.zero_grad()
        head(*batch(step)).loss.backward()
        optimizer.step()
    return [p.detach() for p in head.parameters()]


@HEADS
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
@pytest.mark.parametrize(
    "optimizer_of",
    [lambda p: torch.optim.SGD(p, lr=0.5), lambda p: torch.optim.Adam(p, lr=0.01)],
    ids=["sgd", "adam"],
)
def test_twenty_steps_lead_every_backend_to_the_same_parameters(
    kind, backend, optimizer_of, monkeypatch
):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 8 * 4 * 3 * V)
    fast = BACKENDS[backend]
    monkeypatch.setitem(BACKENDS, "fused", fast)
    got = trajectory(kind, optimizer_of)
    monkeypatch.setitem(BACKENDS, "fused", BACKENDS["reference"])
    want = trajectory(kind, optimizer_of)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    moved = [(a - b).abs().max() for a, b in zip(got, make_head(kind).parameters(), strict=True)]
    assert min(moved) > 1e-3


@HEADS
def test_micro_batches_add_up_to_the_batch(kind):
    head, (hidden, target) = make_head(kind), batch()
    target[2, 1] = -100
    head(hidden, target).loss.backward()
    want = [p.grad.clone() for p in head.parameters()]
    head.zero_grad()
    for columns in ([0, 1], [2], [3, 4]):
        loss = head(hidden[:, columns], target[:, columns], "sum").loss
        (loss / (T * B - 1)).backward()
    torch.testing.assert_close([p.grad for p in head.parameters()], want)


@HEADS
def test_the_window_does_not_change_the_log_probabilities(kind):
    head, (hidden, target) = make_head(kind), batch()
    whole = head(hidden, target).output
    parts = [head(hidden[t : t + 4], target[t : t + 4]).output for t in (0, 4)]
    torch.testing.assert_close(torch.cat(parts), whole)


@HEADS
def test_a_head_learns_a_distribution(kind):
    # The cross-entropy of what is learnt comes down to the entropy of what is to be learnt.
    prob = torch.tensor([0.5, 0.3, 0.2, *[0.0] * (V - 3)]).double()
    head, hidden = make_head(kind), torch.ones(10, D).double()
    target = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        head(hidden, target).loss.backward()
        optimizer.step()
    torch.testing.assert_close(head.log_prob(hidden[0]).exp(), prob, rtol=0, atol=0.01)


@HEADS
def test_the_loss_of_a_head_is_the_loss_of_its_softmaxes(kind):
    head, (hidden, target) = make_head(kind), batch()
    nn.init.normal_(head.bias)
    log_weight, context = head.softmaxes(hidden)
    want = mixture_loss(
        context, log_weight, head.weight, target, bias=head.bias, backend="reference"
    )
    output, loss = head(hidden, target)
    torch.testing.assert_close(loss, want.loss)
    torch.testing.assert_close(output, -want.token_loss)
