"""Every head is a well-behaved `nn.Module`: construction, tying, saving, compiling."""

import copy

import pytest
import torch
from torch import nn

from highrank.heads import MixtureOfSoftmaxes, Softmax


def test_parameters_start_as_in_the_papers_code(build):
    head = build()
    assert 0.09 < head.weight.abs().max() <= 0.1
    assert head.weight.min() < 0 < head.weight.max()
    assert (head.bias == 0).all()
    for layer in head.children():
        bound = 6**-0.5  # nn.Linear: 1/√D
        assert 0.7 * bound < layer.weight.abs().max() <= bound


def test_without_bias_there_is_none(build, hidden):
    head = build(bias=False).double()
    assert head.bias is None and "bias" not in head.state_dict()
    total = head.log_prob(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_dtype_trains_with_a_loss_of_at_least_float32(build, dtype):
    head = build(dtype=dtype)
    loss = head(torch.randn(7, 6, dtype=dtype), torch.arange(7)).loss
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(p.dtype == p.grad.dtype == dtype for p in head.parameters())


def test_autocast_trains_float32_parameters(build, hidden, target):
    head, hidden = build(), hidden.float()
    want = head(hidden, target).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(hidden, target).loss
        log_p = head.log_prob(hidden)
        head.sample(hidden), head.predict(hidden)
    (loss + log_p[0, 0]).backward()
    assert loss.dtype == log_p.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in head.parameters())
    torch.testing.assert_close(loss, want, rtol=0.01, atol=0)


def test_state_dict_round_trip(build, generic, hidden):
    head, other = generic(build()), build().double()
    assert not torch.equal(head.log_prob(hidden), other.log_prob(hidden))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head.log_prob(hidden), other.log_prob(hidden))


def test_a_deep_copy_is_equal_and_independent(head, hidden):
    other = copy.deepcopy(head)
    before = head.log_prob(hidden)
    assert torch.equal(other.log_prob(hidden), before)
    nn.init.zeros_(other.weight)
    assert torch.equal(head.log_prob(hidden), before)


def test_a_head_made_on_the_meta_device_comes_to_life(build):
    head = build(device="meta")
    assert all(p.is_meta for p in head.parameters())
    head.to_empty(device="cpu")
    usual = build()
    for module in (head, usual):
        torch.manual_seed(1)
        module.reset_parameters()
    torch.testing.assert_close(head.state_dict(), usual.state_dict(), rtol=0, atol=0)


def test_a_tied_weight_is_the_parameter_itself(head):
    embedding = nn.Embedding(11, head.embedding_size)
    head.tie(embedding.weight)
    assert head.weight is embedding.weight
    assert sum(p is embedding.weight for p in head.parameters()) == 1


def test_training_moves_a_tied_embedding_by_the_sum_of_both_gradients(head, target):
    embedding = nn.Embedding(11, head.embedding_size, _weight=head.weight.detach().clone())
    projection = torch.randn(head.embedding_size, 6).double()

    def backward():
        head(embedding(target) @ projection, target).loss.backward()

    backward()
    both = head.weight.grad + embedding.weight.grad
    head.tie(embedding.weight)
    embedding.zero_grad()
    backward()
    before = embedding.weight.detach().clone()
    torch.optim.SGD(nn.ModuleList([embedding, head]).parameters(), lr=1.0).step()
    torch.testing.assert_close(before - embedding.weight, both)
    assert torch.equal(head.weight, embedding.weight) and both.any()


def test_tying_names_both_shapes(head):
    E = head.embedding_size
    with pytest.raises(ValueError, match=rf"\(11, {E}\), got \(12, {E}\)$"):
        head.tie(nn.Embedding(12, E).weight)
    with pytest.raises(ValueError, match="weight must be an nn.Parameter, got Tensor"):
        head.tie(torch.zeros(11, E))


# The compiler sets off torch's warnings against its own internals.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_is_as_eager_forward_and_backward(head, hidden, target, reduction):
    target[1] = -100
    compiled = torch.compile(head, backend="aot_eager")
    results = []
    for called in (head, compiled):
        output, loss = called(hidden, target, reduction)
        results.append([output, loss, *torch.autograd.grad(loss.sum(), list(head.parameters()))])
    torch.testing.assert_close(results[1], results[0])


def test_repr_says_what_was_asked_for():
    assert repr(Softmax(6, 11, bias=False)) == (
        "Softmax(hidden_size=6, vocab_size=11, dropout=0.0, bias=False)"
    )
    text = repr(MixtureOfSoftmaxes(6, 11, 3, 4, activation="identity", dropout=0.2))
    assert (
        "hidden_size=6, vocab_size=11, num_components=3, embedding_size=4, "
        "activation='identity', dropout=0.2, bias=True" in text
    )
    assert "(latent): Linear(in_features=6, out_features=12, bias=True)" in text
    assert "(prior): Linear(in_features=6, out_features=3, bias=False)" in text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size must be at least 1, got -1"),
        ({"num_components": 0}, "num_components must be at least 1, got 0"),
        ({"embedding_size": 0}, "embedding_size must be at least 1, got 0"),
        ({"activation": "relu"}, r"activation must be one of \['tanh', 'identity'\], got 'relu'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    sizes = {"hidden_size": 6, "vocab_size": 11, "num_components": 3, "embedding_size": 4}
    with pytest.raises(ValueError, match=f"^{message}$"):
        MixtureOfSoftmaxes(**(sizes | options))
