"""What is true of every mixture with further components: D = 6, V = 11, K = 3, E = 4."""

import pytest
import scipy.stats
import torch
from torch import nn
from torch.autograd import gradcheck

from highrank.heads import ConstantComponents, MixtureOfSoftmaxes, Pointer
from highrank.ops.mixture_cross_entropy import BACKENDS

T, B, D, V, E = 9, 2, 6, 11, 4
HEADS = {
    "constant": lambda K, **options: ConstantComponents(
        D, V, K, E, num_topics=2, token_counts=list(range(V)), **options
    ),
    "pointer": lambda K, **options: Pointer(D, V, K, E, num_states=5, key_size=3, **options),
}


@pytest.fixture(params=HEADS)
def build(request):
    return HEADS[request.param]


@pytest.fixture(params=[1, 3], ids=["K=1", "K=3"])
def head(request, build, generic):
    return generic(build(request.param), scale=0.7)


@pytest.fixture
def window(head):
    """Hidden states, and what they follow."""
    hidden = torch.randn(T, B, D, dtype=torch.float64)
    return hidden, past_of(head, torch.randint(V, (T, B)))


@pytest.fixture
def target():
    return torch.randint(V, (T, B))


def past_of(head, tokens):
    return {"tokens": tokens, "state": head.initial_state(B)} if head.is_stateful else {}


def test_probabilities_sum_to_one(head, window):
    hidden, past = window
    total = head.log_prob(hidden, **past).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)
    assert head.rank_bound is None


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_are_those_of_log_prob(head, window, target, reduction):
    hidden, past = window
    hidden = hidden.requires_grad_()
    target[3, 1] = -100
    known = target.clamp(min=0)[..., None]
    want = head.log_prob(hidden, **past).gather(-1, known).squeeze(-1) * (target >= 0)
    output, loss = head(hidden, target, reduction, **past)
    torch.testing.assert_close(output, want, rtol=1e-10, atol=1e-10)
    want = {"none": -want, "sum": -want.sum(), "mean": -want.sum() / (T * B - 1)}[reduction]
    leaves = [hidden, *head.parameters()]
    upstream = torch.linspace(-1, 1, want.numel(), dtype=torch.float64).reshape(want.shape) + 2
    got, wanted = (
        torch.autograd.grad((upstream * x).sum(), leaves, allow_unused=True) for x in (loss, want)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_smoothed_shifted_and_weighted_losses_are_those_of_log_prob(head, window, target):
    hidden, past = window
    log_p = head.log_prob(hidden, **past)
    of_target = log_p.gather(-1, target[..., None]).squeeze(-1)
    loss = head(hidden, target, label_smoothing=0.2, **past).loss
    torch.testing.assert_close(loss, -(0.8 * of_target + 0.2 * log_p.mean(-1)).mean())
    loss = head(hidden, target, shift=1, **past).loss
    want = log_p[:, :-1].gather(-1, target[:, 1:, None])
    torch.testing.assert_close(loss, -want.mean())
    weight = torch.rand(T, B).double()
    loss = head(hidden, target, token_weight=weight, **past).loss
    torch.testing.assert_close(loss, -(weight * of_target).sum() / weight.sum())


@pytest.mark.parametrize("method", ["forward", "log_prob"])
def test_gradients_are_those_of_finite_differences(head, window, target, method):
    hidden, past = window
    hidden.requires_grad_()

    def result(*_):
        if method == "forward":
            return head(hidden, target, **past).loss
        return head.log_prob(hidden, **past)[[0, 4, 8]]

    inputs = (hidden, head.gate.weight, head.gate.bias, *own_parameters(head))
    assert gradcheck(result, inputs, nondet_tol=1e-12)


def own_parameters(head):
    return [p for name, p in head.named_parameters() if name.split(".")[0] in ("key", "topic")]


def test_without_weight_it_is_the_mixture_of_softmaxes(head, window, target):
    hidden, past = window
    nn.init.zeros_(head.gate.weight)
    nn.init.constant_(head.gate.bias, -1000.0)
    plain = head.softmaxes
    assert isinstance(plain, MixtureOfSoftmaxes)
    torch.testing.assert_close(
        head.log_prob(hidden, **past), plain.log_prob(hidden), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(head(hidden, target, **past).loss, plain(hidden, target).loss)


def test_it_starts_with_the_weight_that_was_asked_for(build, window):
    hidden, past = window
    for weight in (0.1, 0.3):
        head = build(2, **{f"{build_name(build)}_weight": weight}).double()
        # The first token of a stream has nothing to point at.
        gate = head.log_gate(head.features(hidden, **past)).exp()[1:]
        found = gate[..., 1:].sum(-1)
        torch.testing.assert_close(found, torch.full_like(found, weight), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="must be between 0 and 1, got 1.5"):
        build(2, **{f"{build_name(build)}_weight": 1.5})


def build_name(build):
    return next(name for name, made in HEADS.items() if made is build)


def test_training_goes_through_the_fused_loss(head, window, target, monkeypatch):
    hidden, past = window
    taken, fused = [], BACKENDS["fused"]
    monkeypatch.setitem(BACKENDS, "fused", lambda *args: taken.append("fused") or fused(*args))
    head(hidden, target, **past).loss.backward()
    assert taken == ["fused"] and all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 6}], ids=str)
def test_samples_agree_with_log_prob(head, window, options):
    hidden, past = window
    num_draws = 20_000
    features = head.features(hidden, **past)
    prob = head.log_prob_from(features)[6, 1].detach().exp() ** (1 / options.get("temperature", 1))
    kept = prob >= prob.topk(options.get("top_k", V)).values[-1]
    prob = torch.where(kept, prob, 0.0) / prob[kept].sum()
    many = {name: repeated(value, num_draws // T + 1) for name, value in past.items()}
    drawn = head.sample(repeated(hidden, num_draws // T + 1), **options, **many)[6]
    count = drawn.bincount(minlength=V)
    assert (count[~kept] == 0).all()
    expected = count.sum() * prob[kept]
    assert scipy.stats.chisquare(count[kept], expected).pvalue > 1e-3


def repeated(value, count):
    """The second stream alone, so often."""
    if isinstance(value, tuple):
        return type(value)(*(repeated(part, count) for part in value))
    return value[:, 1:].repeat_interleave(count, 1)


def test_prediction_is_the_likeliest_token(head, window):
    hidden, past = window
    assert torch.equal(head.predict(hidden, **past), head.log_prob(hidden, **past).argmax(-1))


def test_an_impossible_token_has_infinite_loss_or_what_the_others_give_it(head, window, target):
    hidden, past = window
    head.softmaxes.bias.data[3] = -torch.inf
    hidden.requires_grad_()
    output, loss = head(hidden, torch.full_like(target, 3), **past)
    loss.backward()
    assert hidden.grad.isfinite().all()
    log_p = head.log_prob(hidden, **past)
    torch.testing.assert_close(output, log_p[..., 3].detach())
    grad = torch.autograd.grad(log_p[log_p > -torch.inf].sum(), hidden)[0]
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_dtype_trains_with_a_loss_of_at_least_float32(build, target, dtype):
    head = build(2, dtype=dtype)
    loss = head(torch.randn(T, B, D, dtype=dtype), target, **past_of(head, target)).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in head.parameters())


def test_autocast_trains_float32_parameters(build, target):
    head, hidden = build(2), torch.randn(T, B, D)
    past = past_of(head, target)
    want = head(hidden, target, **past).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(hidden, target, **past).loss
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in head.parameters())
    torch.testing.assert_close(loss, want, rtol=0.01, atol=0)


def test_a_head_made_on_the_meta_device_has_no_memory(build):
    head = build(2, device="meta")
    assert all(p.is_meta for p in head.parameters())


def test_its_embedding_can_be_tied(head):
    embedding = nn.Embedding(V, E).double()
    head.tie(embedding.weight)
    assert head.softmaxes.weight is embedding.weight
