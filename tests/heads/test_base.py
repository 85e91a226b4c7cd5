"""What is true of every head: a distribution, its loss, its gradients, its extremes."""

import importlib

import pytest
import torch
from torch.autograd import gradcheck

from highrank.heads import MixtureHead, Softmax
from highrank.ops.loss import chunks
from highrank.ops.mixture_cross_entropy import BACKENDS

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")


def test_probabilities_sum_to_one(head, hidden):
    total = head.log_prob(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_log_prob_is_the_mixture_of_its_softmaxes(head, hidden):
    log_weight, context = head.softmaxes(hidden)
    prob = (context @ head.weight.T + head.bias).softmax(-1)
    want = (log_weight.exp()[..., None] * prob).sum(-2).log()
    torch.testing.assert_close(head.log_prob(hidden), want)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0,)], ids=str)
def test_shapes_follow_the_hidden_state(head, shape):
    hidden, target = torch.randn(*shape, 6).double(), torch.randint(11, shape)
    K, E = head.num_components, head.embedding_size
    log_weight, context = head.mixture(hidden)
    assert log_weight.shape == (*shape, K) and context.shape == (*shape, K, E)
    assert head.log_prob(hidden).shape == (*shape, 11)
    assert head.predict(hidden).shape == head.sample(hidden).shape == shape
    assert head(hidden, target).output.shape == shape and head(hidden, target).loss.shape == ()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_forward_agrees_with_log_prob(head, hidden, target, reduction):
    want = head.log_prob(hidden)[torch.arange(7), target]
    output, loss = head(hidden, target, reduction)
    torch.testing.assert_close(output, want)
    torch.testing.assert_close(loss, -want if reduction == "none" else -getattr(want, reduction)())


def test_ignored_targets_count_for_nothing(head, hidden, target):
    kept = torch.tensor([0, 2, 3, 6])
    ignoring = torch.full((7,), -1).index_copy(0, kept, target[kept])
    output, loss = head(hidden, ignoring, ignore_index=-1)
    torch.testing.assert_close(loss, head(hidden[kept], target[kept]).loss)
    assert (output[[1, 4, 5]] == 0).all() and not output[[1, 4, 5]].signbit().any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_output_carries_gradients_only_without_reduction(head, hidden, target, reduction):
    output, loss = head(hidden, target, reduction)
    assert loss.requires_grad and output.requires_grad == (reduction == "none")


def test_output_without_reduction_has_the_gradient_of_log_prob(head, hidden, target):
    upstream = torch.linspace(-1, 1, 7).double()
    parameters = list(head.parameters())
    output = head(hidden, target, "none").output
    log_p = head.log_prob(hidden)[torch.arange(7), target]
    got, want = (
        torch.autograd.grad((upstream * x).sum(), parameters, allow_unused=True)
        for x in (output, log_p)
    )
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("method", ["forward", "log_prob"])
def test_gradients_are_those_of_finite_differences(head, hidden, target, method):
    hidden = hidden[:3].requires_grad_()

    # gradcheck moves the parameters themselves, in place.
    def result(*_):
        return head(hidden, target[:3]).loss if method == "forward" else head.log_prob(hidden)

    # A second backward pass recomputes, and may differ in the last bit.
    assert gradcheck(result, (hidden, *head.parameters()), nondet_tol=1e-12)


@pytest.fixture
def large(monkeypatch):
    """Tables of any size are worth chunks."""
    monkeypatch.setattr("highrank.ops.linear_cross_entropy.SMALL_BYTES", 0)


def test_training_goes_through_the_fused_backend(head, hidden, target, large, monkeypatch):
    taken = []
    fused = BACKENDS["fused"]
    monkeypatch.setitem(BACKENDS, "fused", lambda *args: taken.append("fused") or fused(*args))
    head(hidden, target).loss.backward()
    assert taken == ["fused"] and head.weight.grad.any()


@pytest.fixture
def wide(build):
    """A head with 500 words, for tables that stand out by their size."""
    head = build()
    head.vocab_size = 500
    head.weight = torch.nn.Parameter(torch.randn(500, head.embedding_size))
    head.bias = torch.nn.Parameter(torch.randn(500))
    return head


def test_forward_makes_no_table_larger_than_a_chunk(watch, wide, large, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 15 * 500)
    with watch() as seen:
        wide(torch.randn(60, 6), torch.randint(500, (60,))).loss.backward()
    assert max(seen.sizes) == 15 * 500


@pytest.mark.parametrize("method", ["predict", "sample"])
def test_words_are_chosen_without_a_table_for_all_tokens(watch, wide, monkeypatch, method):
    monkeypatch.setattr(log_prob_module, "CHUNK_BYTES", 4 * 20 * 500)
    with watch() as seen:
        getattr(wide, method)(torch.randn(60, 6))
    assert max(seen.sizes) == 20 * 500


def test_logits_of_ten_thousand_give_finite_losses_and_gradients(build, generic):
    head = generic(build(activation="identity"))
    hidden = (1e4 * torch.randn(7, 6)).double().requires_grad_()
    loss = head(hidden, torch.arange(7)).loss
    loss.backward()
    assert loss > 1e4 and loss.isfinite() and hidden.grad.isfinite().all()
    assert head.log_prob(hidden).isfinite().all()


def test_an_impossible_word_has_infinite_loss_and_no_gradient(head, hidden, target):
    head.bias.data[3] = -torch.inf
    hidden.requires_grad_()
    output, loss = head(hidden, target)
    loss.backward()
    possible = target != 3
    assert loss == torch.inf and (output == -torch.inf).equal(~possible)
    assert (hidden.grad[~possible] == 0).all()
    got = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    head.zero_grad()
    head(hidden[possible], target[possible]).loss.backward()
    torch.testing.assert_close(got, [p.grad for p in head.parameters() if p.grad is not None])


def test_hidden_of_another_size_is_named(head):
    with pytest.raises(ValueError, match=r"^hidden must be \(\.\.\., 6\), got \(7, 5\)$"):
        head.log_prob(torch.randn(7, 5).double())


def test_a_target_out_of_range_is_named(head, hidden):
    with pytest.raises(ValueError, match=r"0 … 10 \(V = 11\), got 11"):
        head(hidden, torch.full((7,), 11))


def test_a_head_must_state_its_mixture():
    with pytest.raises(NotImplementedError):
        MixtureHead.mixture(Softmax(6, 11), torch.randn(6))
