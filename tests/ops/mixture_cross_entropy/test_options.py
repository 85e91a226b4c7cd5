"""Weights, smoothing, z-loss, soft targets, scale and shift against a dense computation.

N tokens, K components, M targets of a token, E embedding size, V vocabulary.
"""

import pytest
import torch
import torch.nn.functional as F

from highrank.ops.logit_map import PiecewiseLinear, Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss

N, V = 9, 7


def numbers(*shape, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


CASES = {
    "class weight": {"class_weight": numbers(V)},
    "token weight": {"token_weight": numbers(N)},
    "zero weights": {"token_weight": torch.arange(N).remainder(2).double()},
    "label smoothing": {"label_smoothing": 0.1},
    "z-loss": {"z_loss": 0.3},
    "scale": {"logit_scale": 0.5},
    "softcap": {"logit_map": Softcap(2.0)},
    "all": {
        "class_weight": numbers(V),
        "token_weight": numbers(N, seed=6),
        "label_smoothing": 0.2,
        "z_loss": 0.1,
        "logit_scale": 1.7,
        "logit_map": Softcap(3.0),
    },
}


@pytest.fixture(params=CASES)
def options(request):
    return CASES[request.param]


def dense(context, log_weight, weight, bias, target, options):
    """The losses and masses of the tokens, from log-probabilities of all of them."""
    logits = (context @ weight.T + (0 if bias is None else bias)) * options.get("logit_scale", 1)
    if "logit_map" in options:
        logits = options["logit_map"](logits)
    log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)  # (N, V)
    kept = target != -100
    ids = target.clamp(min=0)
    of_class = options.get("class_weight", torch.ones(V, dtype=log_p.dtype))
    epsilon, of_token = options.get("label_smoothing", 0.0), options.get("token_weight", 1.0)
    nll = -log_p.gather(-1, ids[:, None]).squeeze(-1) * of_class[ids]
    loss = (1 - epsilon) * nll - epsilon * (log_p * of_class).mean(-1)
    penalty = (log_weight.exp() * logits.logsumexp(-1).square()).sum(-1)
    loss = (loss + options.get("z_loss", 0.0) * penalty) * of_token * kept
    return loss, of_class[ids] * of_token * kept


def reduced(loss, mass, reduction):
    if reduction == "none":
        return loss
    return loss.sum() / (mass.sum() if reduction == "mean" else 1)


def test_options_are_those_of_a_dense_computation(problem, solve, agree, way, options):
    inputs = problem((N,), V=V)
    inputs.target[2] = -100
    *tensors, target = inputs
    leaves = [t.detach().requires_grad_() for t in tensors]
    want = reduced(*dense(*leaves, target, options), way["reduction"])
    upstream = numbers(*want.shape) + 0.5
    grads = torch.autograd.grad(want, leaves, upstream)
    got = solve(inputs, upstream=upstream, chunk_bytes=200, **way, **options)
    agree(got, (want.detach(), *grads))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_one_component_is_cross_entropy_of_torch(problem, reduction, epsilon):
    context, log_weight, weight, bias, target = problem((N,), K=1, V=V)
    target[3] = -100
    class_weight = numbers(V)
    got = mixture_cross_entropy(
        context,
        torch.zeros_like(log_weight),
        weight,
        target,
        bias=bias,
        reduction=reduction,
        class_weight=class_weight,
        label_smoothing=epsilon,
    )
    logits = F.linear(context.squeeze(1), weight, bias)
    want = F.cross_entropy(
        logits, target, class_weight, reduction=reduction, label_smoothing=epsilon
    )
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "chunked", "fused", "registered"])
def test_without_any_weight_the_mean_is_nan_and_the_gradients_are_zero(problem, backend):
    *tensors, target = problem((N,), V=V)
    leaves = [t.detach().requires_grad_() for t in tensors]
    context, log_weight, weight, bias = leaves
    nothing = torch.zeros(N, dtype=torch.float64)
    loss = mixture_cross_entropy(
        context, log_weight, weight, target, bias=bias, token_weight=nothing, backend=backend
    )
    assert loss.isnan()
    assert not any(g.any() for g in torch.autograd.grad(loss, leaves))


def test_a_learned_map_is_trained_by_the_reference_alone(problem):
    context, log_weight, weight, bias, target = problem((N,), V=V)
    learned, options = PiecewiseLinear(5).double(), {"bias": bias}
    given = (context, log_weight, weight, target)
    loss = mixture_cross_entropy(*given, logit_map=learned, backend="reference", **options)
    loss.backward()
    assert learned.score.grad.any()
    learned.requires_grad_(False)
    torch.testing.assert_close(mixture_cross_entropy(*given, logit_map=learned, **options), loss)


def soft_targets(M=3):
    ids = torch.stack([torch.randperm(V)[:M] for _ in range(N)])
    return ids, numbers(N, M).softmax(-1) * 0.9


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignored"])
def test_soft_targets_are_a_cross_entropy_with_a_teacher(problem, agree, way, ignored):
    *tensors, _ = problem((N,), V=V)
    ids, probability = soft_targets()
    if ignored:
        ids[1] = -100
        ids[4, 2] = -100
        probability[4, 2] = 0
    leaves = [t.detach().requires_grad_() for t in tensors]
    context, log_weight, weight, bias = leaves
    log_q = F.linear(context, weight, bias).log_softmax(-1)
    log_p = (log_weight[..., None] + log_q).logsumexp(-2)
    kept = (ids != -100).any(-1)
    loss = -(probability * log_p.gather(-1, ids.clamp(min=0))).sum(-1) * kept
    want = reduced(loss, kept.double(), way["reduction"])
    got = mixture_cross_entropy(
        context, log_weight, weight, (ids, probability), bias=bias, chunk_bytes=300, **way
    )
    both = [torch.autograd.grad(x.sum(), leaves) for x in (got, want)]
    agree((got.detach(), *both[0]), (want.detach(), *both[1]))


def test_one_target_of_probability_one_is_an_ordinary_target(problem, agree, way):
    context, log_weight, weight, bias, target = problem()
    soft = target[:, None], torch.ones(len(target), 1, dtype=torch.float64)
    both = [
        mixture_cross_entropy(context, log_weight, weight, t, bias=bias, **way)
        for t in (target, soft)
    ]
    agree(both[:1], both[1:])


@pytest.mark.parametrize("shift", [1, 2])
def test_shift_scores_the_targets_of_later_positions(problem, agree, way, shift):
    context, log_weight, weight, bias, target = problem((2, 5))
    got = mixture_cross_entropy(context, log_weight, weight, target, bias=bias, shift=shift, **way)
    want = mixture_cross_entropy(
        context[:, :-shift], log_weight[:, :-shift], weight, target[:, shift:], bias=bias, **way
    )
    agree([got], [want])


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}], ids=["plain", "general"])
def test_by_products_are_those_of_the_mixture(problem, way, options):
    context, log_weight, weight, bias, target = problem((4, 3))
    target[0, 1] = -100
    also = ("lse", "prediction", "entropy", "log_weight")
    found = mixture_loss(
        context, log_weight, weight, target, bias=bias, also=also, chunk_bytes=200, **way, **options
    ).by_products
    logits = F.linear(context, weight, bias)
    log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)
    kept = target != -100
    want = {
        "lse": logits.logsumexp(-1),
        "prediction": log_p.argmax(-1),
        "entropy": -(log_p.exp() * log_p).sum(-1),
    }
    for name, value in want.items():
        torch.testing.assert_close(found[name][kept], value[kept])
        assert found[name].shape == value.shape
        assert way["backend"] == "reference" or not found[name][~kept].any()
    assert found["log_weight"] is log_weight


def test_by_products_of_no_target_at_all_are_zeros(problem, way):
    context, log_weight, weight, _, target = problem()
    also = ("lse", "prediction", "entropy")
    ignored = torch.full_like(target, -100)
    found = mixture_loss(context, log_weight, weight, ignored, also=also, **way).by_products
    assert [found[name].shape for name in also] == [(9, 3), (9,), (9,)]
    assert way["backend"] == "reference" or not any(x.any() for x in found.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, got 1.0"),
        ({"z_loss": -1.0}, "z_loss must be at least 0 and finite, got -1.0"),
        ({"z_loss": float("inf")}, "z_loss must be at least 0 and finite, got inf"),
        ({"shift": 9}, "shift must be below the number of positions, 9, got 9"),
        ({"class_weight": numbers(3)}, r"class_weight must be \(7,\), got \(3,\)"),
        ({"token_weight": numbers(3)}, "token_weight must have the shape of the targets"),
        ({"token_weight": numbers(9).requires_grad_()}, "token_weight must not require"),
        ({"class_weight": numbers(7).requires_grad_()}, "class_weight must not require"),
        ({"logit_map": PiecewiseLinear(5)}, "logit_map must have no parameters that require"),
    ],
)
def test_wrong_options_are_refused(problem, options, message):
    context, log_weight, weight, bias, target = problem()
    with pytest.raises(ValueError, match=message):
        mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **options)


def test_an_unknown_option_is_refused_by_name(problem):
    context, log_weight, weight, _, target = problem()
    with pytest.raises(TypeError, match=r"got \['label_smothing'\]"):
        mixture_cross_entropy(context, log_weight, weight, target, label_smothing=0.1)


@pytest.mark.parametrize("name", ["class_weight", "label_smoothing"])
def test_soft_targets_have_weights_of_their_own(problem, name):
    context, log_weight, weight, *_ = problem((N,), V=V)
    options = {"class_weight": numbers(V), "label_smoothing": 0.1}
    with pytest.raises(ValueError, match=f"{name} must come with target ids, got probabilities"):
        mixture_cross_entropy(context, log_weight, weight, soft_targets(), **{name: options[name]})
