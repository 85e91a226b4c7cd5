"""A head that states only its log-probabilities: the base class gives it everything else."""

import importlib

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from highrank.heads import Head

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")
D, V = 6, 11


class Sigsoftmax(Head):
    """softmax(z + log σ(z)): no mixture, and no fused loss."""

    def __init__(self, hidden_size, vocab_size):
        super().__init__(hidden_size, vocab_size)
        self.weight = nn.Parameter(torch.randn(vocab_size, hidden_size))

    def log_prob_from(self, features):
        z = features @ self.weight.T
        return (z + nn.functional.logsigmoid(z)).log_softmax(-1)


@pytest.fixture
def head():
    return Sigsoftmax(D, V).double()


@pytest.fixture
def small_chunks(monkeypatch):
    """Two tokens a chunk."""
    monkeypatch.setattr(log_prob_module, "CHUNK_BYTES", 2 * V * 8)


def test_probabilities_sum_to_one_without_a_target(head, hidden):
    total = head(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))
    assert head.rank_bound is None and head.num_components == 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_are_those_of_log_prob(head, hidden, target, reduction, small_chunks):
    hidden = hidden.requires_grad_()
    want = head.log_prob(hidden)[torch.arange(7), target]
    want = -want if reduction == "none" else -getattr(want, reduction)()
    output, loss = head(hidden, target, reduction)
    torch.testing.assert_close(loss, want)
    assert output.requires_grad == (reduction == "none")
    leaves = (hidden, head.weight)
    got, wanted = (torch.autograd.grad(x.sum(), leaves) for x in (loss, want))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_finite_differences(head, hidden, target, small_chunks):
    assert gradcheck(
        lambda h, _: head(h, target[:3]).loss, (hidden[:3].requires_grad_(), head.weight)
    )


def test_ignored_and_impossible_targets(head, hidden, target, small_chunks):
    kept = torch.tensor([0, 2, 3, 6])
    ignoring = torch.full((7,), -1).index_copy(0, kept, target[kept])
    output, loss = head(hidden, ignoring, ignore_index=-1)
    torch.testing.assert_close(loss, head(hidden[kept], target[kept]).loss)
    assert (output[[1, 4, 5]] == 0).all()
    with pytest.raises(ValueError, match=r"target must be in 0 … 10 \(V = 11\), got 11"):
        head(hidden, target + 1)
    with pytest.raises(ValueError, match="reduction must be one of"):
        head(hidden, target, "total")


def test_training_makes_no_table_larger_than_a_chunk(watch, small_chunks):
    head, hidden = Sigsoftmax(D, V).double(), torch.randn(20, 3, D).double().requires_grad_()
    with watch() as seen:
        head(hidden, torch.randint(V, (20, 3))).loss.backward()
    assert max(seen.sizes) <= max(hidden.numel(), head.weight.numel()) < 60 * V


def test_prediction_and_samples_follow_log_prob(head, hidden, small_chunks):
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))
    generator = torch.Generator().manual_seed(1)
    drawn = head.sample(hidden[:1].expand(20_000, -1), generator=generator)
    found = drawn.bincount(minlength=V).double() / 20_000
    torch.testing.assert_close(found, head.log_prob(hidden[0]).exp(), atol=0.015, rtol=0)
    assert torch.equal(head.sample(hidden, temperature=0.0), head.predict(hidden))


def test_its_embedding_can_be_tied(head):
    embedding = nn.Embedding(V, D).double()
    head.tie(embedding.weight)
    assert head.weight is embedding.weight
