"""The contract of every head: a distribution, its loss and gradients, its samples, its extremes."""

import importlib

import pytest
import scipy.stats
import torch
from contract import (
    NAMES,
    B,
    D,
    T,
    V,
    arguments_of,
    cut,
    gradients,
    log_prob_of,
    make_head,
    make_window,
    new_head,
    repeated,
)
from torch.autograd import gradcheck

from highrank.heads import Head
from highrank.ops.mixture_cross_entropy import mixture_loss

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")
EXACT = {"rtol": 1e-10, "atol": 1e-10}
with_dropout = pytest.mark.parametrize("name", [n for n in NAMES if "dropout" in arguments_of(n)])


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def head(name):
    return make_head(name)


def test_probabilities_sum_to_one(head):
    hidden, _, past = make_window(head)
    log_p = head.log_prob(hidden, **past)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(T, B).double(), **EXACT)
    assert torch.equal(head(hidden, **past), log_p)


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 200}], ids=["whole", "chunks"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_are_those_of_log_prob(head, reduction, options):
    hidden, target, past = make_window(head)
    target[1, 1] = -100
    want = log_prob_of(head.log_prob(hidden, **past), target)
    output, loss = head(hidden, target, reduction, **options, **past)
    torch.testing.assert_close(output, want, **EXACT)
    assert output.requires_grad == (reduction == "none") and not output[1, 1].signbit()
    want = {"none": -want, "sum": -want.sum(), "mean": -want.sum() / (T * B - 1)}[reduction]
    torch.testing.assert_close(loss, want, **EXACT)
    upstream = torch.linspace(-1, 2, want.numel()).double().reshape(want.shape)
    got, wanted = (gradients((upstream * x).sum(), head, hidden) for x in (loss, want))
    torch.testing.assert_close(got, wanted, **EXACT)


@pytest.mark.parametrize("method", ["forward", "log_prob"])
def test_gradients_are_those_of_finite_differences(head, method):
    hidden, target, past = make_window(head, 3, 1)

    # gradcheck moves the parameters themselves, in place.
    def result(*_):
        if method == "log_prob":
            return head.log_prob(hidden, **past)
        return head(hidden, target, **past).loss

    leaves = (hidden, *(p for p in head.parameters() if p.numel()))
    # A second backward pass recomputes, and may differ in the last bit.
    assert gradcheck(result, leaves, nondet_tol=1e-12, fast_mode=True)


WEIGHTS = {
    "class_weight": torch.linspace(0.1, 2, V).double(),
    "token_weight": torch.linspace(0, 2, T * B).double().view(T, B),
}
OPTIONS = {
    "weights": WEIGHTS,
    "smoothing": {"label_smoothing": 0.1},
    "all": {**WEIGHTS, "label_smoothing": 0.1, "chunk_bytes": 200},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_the_loss_are_those_of_a_softmax_with_these_log_probabilities(head, options):
    hidden, target, past = make_window(head)
    target[1, 1] = -100
    log_p = head.log_prob(hidden, **past)[:, :, None]
    eye, zeros = torch.eye(V).double(), torch.zeros(T, B, 1).double()
    want = mixture_loss(log_p, zeros, eye, target, backend="reference", **options)
    output, loss = head(hidden, target, **options, **past)
    torch.testing.assert_close((output, loss), (-want.token_loss, want.loss), **EXACT)
    both = [gradients(x, head, hidden) for x in (loss, want.loss)]
    torch.testing.assert_close(*both, **EXACT)


def test_targets_are_shifted_along_time_and_not_along_the_batch(head):
    """Their last dimension, which is time for heads with `batch_first` only."""
    hidden, target, past = make_window(head)
    with pytest.raises(ValueError, match=r"^shift must be 0 for hidden states \(T, B, D\), got 2"):
        head(hidden, target, shift=2, **past)
    hidden, target = hidden.transpose(0, 1), target.T
    past = past and past | {"tokens": past["tokens"].T}
    for part in head.modules():
        part.batch_first = True
    want = log_prob_of(head.log_prob(hidden, **past)[:, :-2], target[:, 2:])
    output, loss = head(hidden, target, shift=2, **past)
    torch.testing.assert_close((output, loss), (want, -want.mean()), **EXACT)


def test_soft_targets_have_the_cross_entropy(head):
    hidden, _, past = make_window(head)
    ids, amount = torch.randint(V, (T, B, 3)), torch.rand(T, B, 3).double().softmax(-1)
    want = -(amount * head.log_prob(hidden, **past).gather(-1, ids)).sum(-1).mean()
    torch.testing.assert_close(head(hidden, (ids, amount), **past).loss, want, **EXACT)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0,)], ids=str)
def test_shapes_follow_the_hidden_state(head, shape):
    if head.is_stateful:
        pytest.skip("its hidden states are (T, B, D)")
    hidden, target = torch.randn(*shape, D).double(), torch.randint(V, shape)
    assert head.log_prob(hidden).shape == (*shape, V)
    assert head.predict(hidden).shape == head.sample(hidden).shape == shape
    assert head(hidden, target).output.shape == shape and head(hidden, target).loss.shape == ()


def test_no_prediction_depends_on_another_sequence_or_a_later_position(head):
    hidden, _, past = make_window(head)
    before = head.log_prob(hidden, **past)
    with torch.no_grad():
        hidden[3:, 0] += 1.0
    if past:
        past["tokens"][3:, 0] = (past["tokens"][3:, 0] + 1) % V
    after = head.log_prob(hidden, **past)
    torch.testing.assert_close(after[:, 1:], before[:, 1:], **EXACT)
    torch.testing.assert_close(after[:3, 0], before[:3, 0], **EXACT)
    assert not torch.allclose(after[3:, 0], before[3:, 0])


@pytest.mark.parametrize("lengths", [(1, 4), (3, 2)], ids=str)
def test_windows_of_any_length_are_one_long_window(head, lengths):
    hidden, target, past = make_window(head)
    whole, state, found = head(hidden, target, **past).output, past.get("state"), []
    tokens = past.get("tokens", target)
    for window in zip(*(x.split(lengths) for x in (hidden, target, tokens)), strict=True):
        given = {"tokens": window[2], "state": state} if past else {}
        found.append(head(*window[:2], **given).output)
        if past:
            state = head.advance(window[0], window[2], state)
    torch.testing.assert_close(torch.cat(found), whole, **EXACT)


@with_dropout
def test_batch_first_is_time_first_transposed(name):
    head, first = make_head(name), new_head(name, batch_first=True).double()
    first.load_state_dict(head.state_dict())
    hidden, target, past = make_window(head)
    want = head(hidden, target, "none", **past).output
    given = {**past, "tokens": past["tokens"].T} if past else {}
    got = first(hidden.transpose(0, 1), target.T, "none", **given).output
    torch.testing.assert_close(got.T, want, **EXACT)
    if past:
        states = [
            head.advance(hidden, past["tokens"], past["state"]),
            first.advance(hidden.transpose(0, 1), given["tokens"], past["state"]),
        ]
        torch.testing.assert_close(*states)


@with_dropout
@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_has_one_mask_per_sequence_shared_over_time(name, batch_first):
    head = make_head(name, dropout=0.5, batch_first=batch_first)
    if head.is_stateful:
        pytest.skip("its states differ over time")
    hidden = torch.randn(1, 1, D).double().expand(4, 3, D)
    time = int(batch_first)
    target = torch.full((4, 3), V - 1)
    output = head(hidden, target, "none").output.transpose(0, time)  # (T, B)
    torch.testing.assert_close(output, output[:1].expand_as(output), **EXACT)
    assert len(output[0].unique()) > 1
    assert not torch.equal(head(hidden, target, "none").output.transpose(0, time), output)
    head.eval()
    assert len(head(hidden, target, "none").output.unique()) == 1


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 6, "top_p": 0.9}], ids=str)
def test_samples_agree_with_log_prob(name, options):
    head = make_head(name, scale=0.4)
    hidden, _, past = make_window(head, 3, 2)
    want = cut(head.log_prob(hidden, **past)[-1, 1].detach().exp(), **options)
    many = {key: repeated(value, 4000) for key, value in past.items()}
    count = head.sample(repeated(hidden, 4000), **options, **many)[-1].bincount(minlength=V)
    assert (count[want == 0] == 0).all()
    assert scipy.stats.chisquare(count[want > 0], 4000 * want[want > 0]).pvalue > 1e-4


def test_predictions_are_the_likeliest_tokens_in_chunks_of_any_size(head, monkeypatch):
    hidden, _, past = make_window(head)
    want = head.log_prob(hidden, **past).argmax(-1)
    monkeypatch.setattr(log_prob_module, "CHUNK_BYTES", 3 * V * 8)
    monkeypatch.setattr(log_prob_module, "MOST_BYTES", 1)
    found = head.predict(hidden, **past)
    assert torch.equal(found, want) and not found.requires_grad
    for options in ({"temperature": 0.0}, {"top_k": 1}):
        assert torch.equal(head.sample(hidden, **options, **past), want)
    one, same, other = (
        head.sample(hidden, generator=torch.Generator().manual_seed(seed), **past)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("shape", [(0, B), (T, 0), (T, B)], ids=["no time", "no batch", "ignored"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_without_targets_the_loss_is_torchs_and_the_gradients_are_zero(head, shape, reduction):
    hidden, target, past = make_window(head, *shape)
    output, loss = head(hidden, torch.full_like(target, -100), reduction, **past)
    assert loss.isnan() if reduction == "mean" else not loss.any()
    assert output.shape == shape and not output.any()
    assert not any(g.any() for g in gradients(loss.sum(), head, hidden))


def test_one_token_is_certain(name):
    head = make_head(name, vocab_size=1)
    hidden, target, past = make_window(head)
    torch.testing.assert_close(head.log_prob(hidden, **past), torch.zeros(T, B, 1).double())
    assert head(hidden, target, **past).loss.abs() < 1e-12
    assert not head.sample(hidden, **past).any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_impossible_targets_have_infinite_loss_and_no_gradient(head, reduction):
    if head.bias is None:
        pytest.skip("without a bias every token is possible")
    hidden, target, past = make_window(head)
    with torch.no_grad():
        head.bias[[0, 3, 7]] = -torch.inf
    target[0] = 3
    output, loss = head(hidden, target, reduction, **past)
    log_p = head.log_prob(hidden, **past)
    torch.testing.assert_close(output, log_prob_of(log_p, target), **EXACT)
    impossible = output == -torch.inf
    possible = head(hidden, target.masked_fill(impossible, -100), reduction, **past).loss
    both = [gradients(x.sum(), head, hidden) for x in (loss, possible)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-10)
    assert loss.isinf().any() == impossible.any()
    # And the possible ones of an impossible token's row have theirs.
    assert all(g.isfinite().all() for g in gradients(log_p[log_p.isfinite()].sum(), head, hidden))
    drawn = log_p.gather(-1, head.sample(hidden, **past)[..., None])
    assert drawn.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_tiny_and_huge_parameters_have_the_loss_of_log_prob(name, scale):
    head = make_head(name, scale=scale)
    hidden, target, past = make_window(head)
    want = -log_prob_of(head.log_prob(hidden, **past), target).mean()
    loss = head(hidden, target, **past).loss
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    got, wanted = (gradients(x, head, hidden) for x in (loss, want))
    for one, other in zip(got, wanted, strict=True):
        size = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one / size, other / size, rtol=0, atol=1e-6)


def test_a_state_that_is_no_number_has_a_loss_that_is_none(head):
    hidden, target, past = make_window(head)
    hidden.data[1, 1] = torch.nan
    assert head(hidden, target, **past).loss.isnan()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda h, t: (h, t + V), rf"target must be in 0 … {V - 1} \(V = {V}\), got "),
        (lambda h, t: (h, t[1:]), r"target must be \(5, 3\), got \(4, 3\)"),
        (lambda h, t: (h, t, "total"), "reduction must be one of"),
        (lambda h, t: (h[..., :5], t), r"^hidden must be \(\.\.\., 6\), got \(5, 3, 5\)$"),
    ],
)
def test_a_wrong_target_reduction_or_state_is_named(head, change, message):
    if type(head).features is Head.features and "hidden" in message:
        pytest.skip("its log_prob_from gets the states as they are")
    hidden, target, past = make_window(head)
    with pytest.raises(ValueError, match=message):
        head(*change(hidden, target), **past)


def test_options_without_a_target_are_refused(head):
    hidden, _, past = make_window(head)
    with pytest.raises(ValueError, match="target must be given with label_smoothing, got None"):
        head(hidden, label_smoothing=0.1, **past)


def test_the_rank_of_log_prob_is_the_bound_or_exceeds_that_of_one_softmax(name):
    head = make_head(name, vocab_size=40, scale=1.0)
    hidden, _, past = make_window(head, 60, 1)
    rank = torch.linalg.matrix_rank(head.log_prob(hidden, **past)[:, 0])
    if head.rank_bound is None:
        assert rank > getattr(head, "embedding_size", D) + 2
    else:
        assert rank == min(40, head.rank_bound)
