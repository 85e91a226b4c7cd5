"""What is true of every head beyond the paper's three: a distribution, its loss, its samples."""

import copy
import importlib

import pytest
import scipy.stats
import torch
from torch import nn
from torch.autograd import gradcheck

from highrank.heads import (
    DirectOutputConnection,
    LowRankMixture,
    Mixtape,
    MultiFacetSoftmax,
    PartitionedSoftmax,
    Pointwise,
)
from highrank.ops.loss import chunks

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")
D, E = 6, 4
EVERY = {
    "mixtape": lambda V, **options: Mixtape(D, V, 4, E, frequent_fraction=0.3, **options),
    "mixtape, by counts": lambda V, **options: Mixtape(
        D, V, 2, E, frequent_fraction=0.3, gate_size=3, token_counts=range(V), **options
    ),
    "doc": lambda V, **options: DirectOutputConnection(
        D, V, 5, E, layer_sizes=(2, 4), lower_components=(2,), **options
    ),
    "low-rank-mos": lambda V, **options: LowRankMixture(D, V, 3, E, rank=2, **options),
    "partition": lambda V, **options: PartitionedSoftmax(D, V, E, num_partitions=3, **options),
    "mfs": lambda V, **options: MultiFacetSoftmax(
        D, V, 3, E, layers=(-2, -1), layer_sizes=(2, 4), **options
    ),
    "sigsoftmax": lambda V, **options: Pointwise(D, V, 1, E, **options),
    "gss": lambda V, **options: Pointwise(D, V, 3, E, logit_map="gss:-1.5,2.5", **options),
    "softcap": lambda V, **options: Pointwise(D, V, 2, E, logit_map="softcap:3", **options),
    "plif": lambda V, **options: Pointwise(D, V, 1, E, logit_map="plif:7,2", **options),
    "mixture of plifs": lambda V, **options: Pointwise(D, V, 2, E, logit_map="plif:70", **options),
}


@pytest.fixture(params=EVERY)
def make(request):
    """A head as its constructor leaves it, of V tokens."""
    return EVERY[request.param]


@pytest.fixture
def head(make, generic):
    return generic(make(11), scale=0.7)


@pytest.fixture
def small_chunks(monkeypatch):
    """A few tokens a chunk."""
    for module in (log_prob_module, chunks):
        monkeypatch.setattr(module, "CHUNK_BYTES", 4 * 11 * 8)


def parameters(head):
    return [p for p in head.parameters() if p.numel()]


def test_probabilities_sum_to_one(head, hidden):
    total = head(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_are_those_of_log_prob(head, hidden, target, reduction, small_chunks):
    hidden, upstream = hidden.requires_grad_(), torch.linspace(-1, 1, 7).double()
    want = head.log_prob(hidden)[torch.arange(7), target]
    output, loss = head(hidden, target, reduction)
    torch.testing.assert_close(output, want, rtol=1e-10, atol=1e-10)
    want = -want if reduction == "none" else -getattr(want, reduction)()
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    leaves = (hidden, *parameters(head))
    got, wanted = (
        torch.autograd.grad((upstream * x).sum(), leaves, allow_unused=True) for x in (loss, want)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", ["forward", "log_prob"])
def test_gradients_are_those_of_finite_differences(head, hidden, target, method, small_chunks):
    hidden = hidden[:3].requires_grad_()

    # gradcheck moves the parameters themselves, in place.
    def result(*_):
        return head(hidden, target[:3]).loss if method == "forward" else head.log_prob(hidden)

    assert gradcheck(result, (hidden, *parameters(head)), nondet_tol=1e-12)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0,)], ids=str)
def test_shapes_follow_the_hidden_state(head, shape):
    hidden, target = torch.randn(*shape, D).double(), torch.randint(11, shape)
    assert head.log_prob(hidden).shape == (*shape, 11)
    assert head.predict(hidden).shape == head.sample(hidden).shape == shape
    assert head(hidden, target).output.shape == shape and head(hidden, target).loss.shape == ()


def test_ignored_and_wrong_targets(head, hidden, target, small_chunks):
    kept = torch.tensor([0, 2, 3, 6])
    ignoring = torch.full((7,), -1).index_copy(0, kept, target[kept])
    output, loss = head(hidden, ignoring, ignore_index=-1)
    torch.testing.assert_close(loss, head(hidden[kept], target[kept]).loss)
    assert (output[[1, 4, 5]] == 0).all()
    with pytest.raises(ValueError, match=r"target must be in 0 … 10 \(V = 11\), got 11"):
        head(hidden, target + 1)
    with pytest.raises(ValueError, match="reduction must be one of"):
        head(hidden, target, "total")
    with pytest.raises(ValueError, match=r"^hidden must be \(\.\.\., 6\), got \(7, 5\)$"):
        head.log_prob(hidden[:, :5])


def test_an_impossible_token_has_infinite_loss_and_no_gradient(head, hidden, target):
    if "softcap" in repr(head):
        pytest.skip("a cap makes every token possible")
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
    assert (head.sample(hidden.detach().repeat(300, 1)) != 3).all()


def test_training_makes_no_table_for_all_tokens(watch, make, monkeypatch):
    V, N = 500, 240
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 4 * 10 * V)
    head = make(V)
    with watch() as seen:
        head(torch.randn(N, D), torch.randint(V, (N,))).loss.backward()
    assert max(seen.sizes) < N * V / 4


def test_samples_follow_log_prob(head, hidden, small_chunks):
    tokens = head.sample(hidden[:2].repeat(5_000, 1)).view(5_000, 2)
    for prob, drawn in zip(head.log_prob(hidden[:2]).detach().exp(), tokens.T, strict=True):
        count = drawn.bincount(minlength=11)
        assert scipy.stats.chisquare(count, 5_000 * prob).pvalue > 1e-3
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))
    assert torch.equal(head.sample(hidden, temperature=0.0), head.predict(hidden))


def test_the_embedding_can_be_tied(head):
    embedding = nn.Embedding(11, E).double()
    head.tie(embedding.weight)
    assert head.weight is embedding.weight
    with pytest.raises(ValueError, match=rf"\(11, {E}\), got \(12, {E}\)$"):
        head.tie(nn.Embedding(12, E).weight)


def test_it_is_saved_and_copied(make, head, hidden):
    other, twin = make(11).double(), copy.deepcopy(head)
    other.load_state_dict(head.state_dict())
    assert torch.equal(head.log_prob(hidden), other.log_prob(hidden))
    assert torch.equal(head.log_prob(hidden), twin.log_prob(hidden))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_dtype_trains_with_a_loss_of_at_least_float32(make, dtype):
    head = make(11, dtype=dtype)
    loss = head(torch.randn(7, D, dtype=dtype), torch.arange(7)).loss
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(p.dtype == dtype for p in head.parameters())
    assert all(p.grad.dtype == dtype for p in head.parameters() if p.grad is not None)


def test_autocast_trains_float32_parameters(make, hidden, target):
    head, hidden = make(11), hidden.float()
    want = head(hidden, target).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, log_p = head(hidden, target).loss, head.log_prob(hidden)
        head.sample(hidden), head.predict(hidden)
    (loss + log_p[0, 0]).backward()
    assert loss.dtype == log_p.dtype == torch.float32
    grads = [p.grad for p in head.parameters() if p.grad is not None]
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)
    torch.testing.assert_close(loss, want, rtol=0.02, atol=0)


def test_dropout_has_one_mask_per_sequence(make):
    head = make(11, dropout=0.5).double()
    hidden = torch.randn(1, 3, D).double().expand(4, 3, D)
    log_p = head.log_prob(hidden)
    assert torch.equal(log_p[0], log_p[3]) and not torch.equal(log_p, head.log_prob(hidden))
    head.eval()
    assert torch.equal(head.log_prob(hidden), head.log_prob(hidden))


@pytest.mark.parametrize("bias", [True, False])
def test_the_rank_of_log_prob_is_the_bound_or_exceeds_that_of_one_softmax(make, generic, bias):
    head = generic(make(40, bias=bias))
    rank = torch.linalg.matrix_rank(head.log_prob(torch.randn(60, D).double()))
    assert rank == (40 if head.rank_bound is None else head.rank_bound)
    assert head.rank_bound is None or head.rank_bound > E + 2


def test_label_smoothing_and_weights_are_those_of_log_prob(head, hidden, target):
    log_p, weight = head.log_prob(hidden), torch.linspace(0.1, 1, 7).double()
    token = -0.9 * log_p[torch.arange(7), target] - 0.1 * log_p.mean(-1)
    options = {"label_smoothing": 0.1, "token_weight": weight}
    loss = head(hidden, target, **options).loss
    torch.testing.assert_close(loss, (weight * token).sum() / weight.sum())


# The compiler sets off torch's warnings against its own internals.
@pytest.mark.filterwarnings("ignore")
def test_compiled_is_as_eager_forward_and_backward(head, hidden, target):
    compiled = torch.compile(head, backend="aot_eager")
    results = []
    for called in (head, compiled):
        output, loss = called(hidden, target)
        found = torch.autograd.grad(loss, parameters(head), allow_unused=True)
        results.append([output, loss, *(g for g in found if g is not None)])
    torch.testing.assert_close(results[1], results[0])
