"""What is true of every adaptive head: a distribution, its loss, its gradients, its module."""

import copy

import pytest
import scipy.stats
import torch
from torch import nn
from torch.autograd import gradcheck

from highrank.ops.loss import chunks
from highrank.ops.mixture_cross_entropy import mixture_loss

V = 23
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def targets_of(log_p, target):
    return log_p.gather(-1, target[..., None]).squeeze(-1)


def test_log_prob_and_its_gradients_are_those_of_the_definition(head, hidden, reference):
    hidden.requires_grad_()
    leaves = [hidden, *head.parameters()]
    upstream = torch.randn(40, V).double()
    got, want = head.log_prob(hidden), reference(head, hidden)
    torch.testing.assert_close(got, want, **EXACT)
    gradients = [
        torch.autograd.grad((upstream * x).sum(), leaves, allow_unused=True) for x in (got, want)
    ]
    torch.testing.assert_close(*map(_filled, gradients), **EXACT)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_and_its_gradients_are_those_of_the_definition(
    head, hidden, target, reference, reduction
):
    hidden.requires_grad_()
    leaves = [hidden, *head.parameters()]
    log_p = targets_of(reference(head, hidden), target)
    want = -log_p if reduction == "none" else -getattr(log_p, reduction)()
    output, loss = head(hidden, target, reduction)
    torch.testing.assert_close(loss, want, **EXACT)
    torch.testing.assert_close(output, log_p, **EXACT)
    assert output.requires_grad == (reduction == "none")
    factor = torch.linspace(-1, 1, 40).double() if reduction == "none" else 3.0
    gradients = [
        torch.autograd.grad((factor * x).sum(), leaves, allow_unused=True) for x in (loss, want)
    ]
    torch.testing.assert_close(*map(_filled, gradients), **EXACT)


def _filled(gradients):
    return [torch.zeros(()) if g is None or not g.any() else g for g in gradients]


@pytest.mark.parametrize("method", ["forward", "log_prob"])
def test_gradients_are_those_of_finite_differences(head, method):
    hidden, target = torch.randn(4, 6).double().requires_grad_(), torch.tensor([0, 3, 9, 22])

    # gradcheck moves the parameters themselves, in place.
    def result(*_):
        return head(hidden, target).loss if method == "forward" else head.log_prob(hidden)

    parameters = [p for p in head.parameters() if p.numel()]
    assert gradcheck(result, (hidden, *parameters), nondet_tol=1e-12)


def test_probabilities_sum_to_one(head, hidden):
    total = sum(head(hidden, torch.full((40,), token)).output.exp() for token in range(V))
    torch.testing.assert_close(total, torch.ones_like(total), **EXACT)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0,)], ids=str)
def test_shapes_follow_the_hidden_state(head, shape):
    hidden, target = torch.randn(*shape, 6).double(), torch.randint(V, shape)
    assert head(hidden).shape == (*shape, V)
    assert head.predict(hidden).shape == head.sample(hidden).shape == shape
    assert head(hidden, target).output.shape == shape and head(hidden, target).loss.shape == ()


def test_ignored_targets_count_for_nothing(head, hidden, target):
    kept = torch.arange(0, 40, 3)
    ignoring = torch.full((40,), -1).index_copy(0, kept, target[kept])
    output, loss = head(hidden, ignoring, ignore_index=-1)
    torch.testing.assert_close(loss, head(hidden[kept], target[kept]).loss)
    assert (output[1::3] == 0).all()
    assert head(hidden, torch.full((40,), -100), "sum").loss == 0
    assert head(hidden, torch.full((40,), -100)).loss.isnan()


def test_a_wrong_target_reduction_or_state_is_named(head, hidden, target):
    with pytest.raises(ValueError, match=r"0 … 22 \(V = 23\), got 23"):
        head(hidden, target + 1)
    with pytest.raises(ValueError, match="reduction must be one of"):
        head(hidden, target, "total")
    with pytest.raises(ValueError, match=r"^hidden must be \(\.\.\., 6\), got \(7, 5\)$"):
        head.log_prob(torch.randn(7, 5).double())


OPTIONS = {
    "class weight": {"class_weight": torch.linspace(0.1, 2, V, dtype=torch.float64)},
    "token weight": {"token_weight": torch.linspace(0, 2, 40, dtype=torch.float64)},
    "smoothing": {"label_smoothing": 0.1},
    "shift": {"shift": 2},
    "chunks": {"chunk_bytes": 200},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_those_of_the_loss_of_its_probabilities(head, hidden, target, options):
    """As a softmax whose logits are the log-probabilities."""
    target[2] = -100
    log_p = head.log_prob(hidden)
    want = mixture_loss(
        log_p[:, None], log_p.new_zeros(40, 1), torch.eye(V).double(), target, **options
    )
    output, loss = head(hidden, target, **options)
    torch.testing.assert_close(loss, want.loss, **EXACT)
    torch.testing.assert_close(output, -want.token_loss, **EXACT)
    both = [torch.autograd.grad(x, head.bias, retain_graph=True)[0] for x in (loss, want.loss)]
    torch.testing.assert_close(*both, **EXACT)


def test_options_of_logits_are_refused(head, hidden, target):
    with pytest.raises(ValueError, match="z_loss must be left out for"):
        head(hidden, target, z_loss=0.1)
    with pytest.raises(ValueError, match=r"target must be \(40,\), got \(39,\)"):
        head(hidden, target[1:])


def test_an_impossible_token_has_infinite_loss_and_no_gradient(head, hidden, target):
    rare, frequent = head.order[-1].item(), head.order[0].item()
    head.bias.data[[rare, frequent]] = -torch.inf
    hidden.requires_grad_()
    output, loss = head(hidden, target)
    loss.backward()
    possible = (target != rare) & (target != frequent)
    assert loss == torch.inf and (output == -torch.inf).equal(~possible)
    assert (hidden.grad[~possible] == 0).all() and hidden.grad[possible].any()
    got = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    head.zero_grad()
    head(hidden[possible], target[possible]).loss.backward()
    torch.testing.assert_close(got, [p.grad for p in head.parameters() if p.grad is not None])


def test_a_forbidden_class_forbids_its_tokens(head, hidden):
    if head.class_bias is None:
        return
    head.class_bias.data[0] = -torch.inf
    start = head.cutoffs[0]
    tokens = head.order[start : start + head.sizes[1]]
    assert head(hidden[: len(tokens)], tokens).loss == torch.inf
    assert (head.log_prob(hidden)[:, tokens] == -torch.inf).all()
    assert not torch.isin(head.sample(hidden.repeat(50, 1)), tokens).any()


def test_every_parameter_has_a_gradient_without_targets_in_the_tails(head, hidden):
    head(hidden, head.order[:1].expand(40)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_tails_are_computed_only_for_their_targets(watch, build):
    head = build()
    hidden = torch.randn(50, 6)
    rare, frequent = head.order[-1:].expand(50), head.order[:1].expand(50)
    sizes = []
    for target in (frequent, rare):
        with watch() as seen:
            head(hidden, target).loss.backward()
        sizes.append(sum(seen.sizes))
    assert sizes[0] < sizes[1] or not head.cutoffs


def test_training_makes_no_table_larger_than_a_chunk(watch, build, monkeypatch):
    head = build()
    chunk = 4 * 3 * V
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * chunk)
    hidden, target = torch.randn(300, 6, requires_grad=True), torch.arange(300) % V
    with watch() as seen:
        head(hidden, target).loss.backward()
    # A shared tail has one more number in each context.
    widest = max(K * (E + 1) for K, E in zip(head.components, head.widths, strict=True))
    assert max(seen.sizes) <= max(chunk, 300 * max(6, widest)) < 300 * V


def test_samples_agree_with_log_prob(build, generic, hidden):
    head = generic(build(), scale=0.4)
    count = head.sample(hidden[:1].expand(20_000, 6)).bincount(minlength=V)
    want = head.log_prob(hidden[0]).detach().exp()
    assert scipy.stats.chisquare(count, 20_000 * want).pvalue > 1e-3
    count = head.sample(hidden[:1].expand(20_000, 6), temperature=0.7).bincount(minlength=V)
    want = (want.log() / 0.7).softmax(-1)
    assert scipy.stats.chisquare(count, 20_000 * want).pvalue > 1e-3


def test_the_components_mix_to_the_frequent_tokens_and_the_tails(head, hidden):
    log_weight, log_q = head.component_log_prob(hidden)
    got = (log_weight.exp()[..., None] * log_q.exp()).sum(1)  # (N, R + m)
    parts = head.log_prob(hidden).exp()[:, head.order].split(head.sizes, -1)
    want = torch.cat([parts[0], *(part.sum(-1, keepdim=True) for part in parts[1:])], -1)
    torch.testing.assert_close(got, want, **EXACT)


def test_predict_is_the_likeliest_token(head, hidden):
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))
    assert torch.equal(head.sample(hidden, temperature=0.0), head.predict(hidden))


def test_renaming_the_tokens_changes_nothing_else(build, generic, hidden, target):
    """The same head with ids in the order of frequency."""
    head = generic(build())
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.order.copy_(torch.arange(V))
        other.bias.copy_(head.bias[head.order])
        if not head.is_banded:
            other.weight.copy_(head.weight[head.order])
    torch.testing.assert_close(other.log_prob(hidden), head.log_prob(hidden)[:, head.order])


def test_dropout_has_one_mask_per_sequence(build, generic):
    head = generic(build(dropout=0.5))
    hidden = torch.randn(1, 4, 6).double().expand(9, 4, 6)
    same = torch.full((9, 4), head.order[-1].item())
    output = head(hidden, same, "none").output
    torch.testing.assert_close(output, output[:1].expand(9, 4))
    assert len(output[0].unique()) > 1
    assert not torch.equal(head(hidden, same, "none").output, output)
    head.eval()
    assert torch.equal(head(hidden, same).output, head(hidden, same).output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_dtype_trains_with_a_loss_of_float32(build, target, dtype):
    head = build(dtype=dtype, dropout=0.1)
    loss = head(torch.randn(40, 6, dtype=dtype), target).loss
    loss.backward()
    assert loss.dtype == torch.float32 and head.order.dtype == torch.long
    assert all(p.dtype == p.grad.dtype == dtype for p in head.parameters())


def test_autocast_trains_float32_parameters(build, hidden, target):
    head, hidden = build(), hidden.float()
    want = head(hidden, target).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, log_p = head(hidden, target).loss, head.log_prob(hidden)
        head.sample(hidden), head.predict(hidden)
    (loss + log_p[0, 0]).backward()
    assert loss.dtype == log_p.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in head.parameters())
    torch.testing.assert_close(loss, want, rtol=0.01, atol=0)


def test_the_order_of_frequency_is_saved(build, generic, hidden):
    head, other = generic(build()), generic(build())
    head.order.copy_(torch.randperm(V))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head.log_prob(hidden), other.log_prob(hidden))


def test_a_head_made_on_the_meta_device_comes_to_life(build):
    head = build(device="meta").to_empty(device="cpu")
    usual = build()
    for module in (head, usual):
        torch.manual_seed(1)
        module.reset_parameters()
    torch.testing.assert_close(head.state_dict(), usual.state_dict(), rtol=0, atol=0)


# The compiler sets off torch's warnings against its own internals.
@pytest.mark.filterwarnings("ignore")
def test_compiled_is_as_eager_forward_and_backward(head, hidden, target):
    target[1] = -100
    compiled = torch.compile(head, backend="aot_eager")
    results = []
    for called in (head, compiled):
        output, loss = called(hidden, target)
        results.append([output, loss, *torch.autograd.grad(loss, list(head.parameters()))])
    torch.testing.assert_close(results[1], results[0])


def test_a_tied_weight_is_the_parameter_itself(head, hidden, target):
    if head.is_banded:
        weights = [nn.Parameter(torch.randn_like(weight)) for weight in head.weights]
        head.tie(weights)
        assert all(a is b for a, b in zip(head.weights, weights, strict=True))
        with pytest.raises(ValueError, match=r"must have bands \[\(.*AdaptiveEmbedding has, got"):
            head.tie(nn.Parameter(torch.randn(V, 4)))
        return
    weight = nn.Parameter(torch.randn(V, head.embedding_size).double())
    head.tie(weight)
    head(hidden, target).loss.backward()
    assert head.weight is weight and weight.grad.any()
