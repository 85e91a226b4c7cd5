"""The loss against SciPy and torch, its by-products, and inputs of any shape and layout.

N tokens, K components, E embedding size, V vocabulary.
"""

import pytest
import scipy.special
import torch
import torch.nn.functional as F

from highrank.ops.logit_map import PiecewiseLinear, Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss


def naive_losses(inputs, cap):
    """In probabilities, by SciPy: softmax, weigh, sum over the components, logarithm."""
    logits = (inputs.context @ inputs.weight.T + inputs.bias).numpy()
    if cap is not None:
        logits = cap * scipy.special.expit(2 * logits / cap) * 2 - cap
    share = scipy.special.softmax(inputs.log_weight.numpy(), axis=-1)
    prob = (share[..., None] * scipy.special.softmax(logits, axis=-1)).sum(-2)
    return -torch.from_numpy(prob[range(9), inputs.target]).log()


@pytest.mark.parametrize("logit_map", [None, Softcap(2.0)])
def test_the_definition_is_minus_the_log_of_the_weighted_softmaxes(problem, solve, logit_map):
    inputs = problem()
    want = naive_losses(inputs, logit_map and logit_map.cap)
    options = {"logit_map": logit_map, "backend": "reference"}
    for reduction, reduce in {"none": lambda x: x, "sum": torch.sum, "mean": torch.mean}.items():
        got = solve(inputs, reduction=reduction, **options)[0]
        torch.testing.assert_close(got, reduce(want))


def torch_solution(inputs, loss_of, reduction, **options):
    """The loss and its gradients for one component, by one of torch's functions."""
    leaves = [t.detach().requires_grad_() for t in (inputs.context, inputs.weight, inputs.bias)]
    loss = loss_of(leaves[0].squeeze(-2), *leaves[1:], inputs.target, reduction, **options)
    return loss.detach(), *torch.autograd.grad(loss, leaves, torch.ones_like(loss))


def cross_entropy(context, weight, bias, target, reduction, **options):
    logits = F.linear(context, weight, bias)
    renamed = {"weight" if key == "class_weight" else key: x for key, x in options.items()}
    return F.cross_entropy(logits, target, reduction=reduction, **renamed)


def linear_cross_entropy(context, weight, bias, target, reduction):
    return F.linear_cross_entropy(
        context, weight, target, linear_bias=bias, reduction=reduction, ignore_index=-100
    )


LOSSES = [
    (cross_entropy, {}),
    (cross_entropy, {"class_weight": torch.linspace(0.5, 2, 7).double(), "label_smoothing": 0.1}),
    *([(linear_cross_entropy, {})] if hasattr(F, "linear_cross_entropy") else []),
]


@pytest.mark.parametrize("ignored", [[], [0, 3, 8]], ids=["all", "some ignored"])
@pytest.mark.parametrize("loss_of, options", LOSSES)
def test_one_component_is_torchs_cross_entropy(
    problem, solve, agree, way, loss_of, options, ignored
):
    inputs = problem(K=1)
    inputs.target[ignored] = -100
    loss, d_context, d_log_weight, *shared = solve(inputs, **way, **options, chunk_bytes=100)
    agree((loss, d_context, *shared), torch_solution(inputs, loss_of, way["reduction"], **options))
    assert (d_log_weight[ignored] == 0).all()
    if not options:
        # One component of weight one has the whole responsibility: -1, scaled as the loss is.
        scale = 9 - len(ignored) if way["reduction"] == "mean" else 1
        want = -(inputs.target != -100)[:, None].double() / scale
        torch.testing.assert_close(d_log_weight, want)


@pytest.mark.parametrize("without", ["tokens", "targets", "weights"])
def test_without_any_target_the_loss_is_as_in_torch_and_the_gradients_are_zero(
    problem, solve, agree, way, without
):
    inputs = problem((0 if without == "tokens" else 5,), K=1)
    options = {}
    if without == "targets":
        inputs.target.fill_(-100)
    elif without == "weights":
        options["token_weight"] = torch.zeros(5).double()
    loss, *gradients = solve(inputs, **way, **options)
    assert loss.isnan() if way["reduction"] == "mean" else (loss == 0).all()
    assert not any(gradient.any() for gradient in gradients)
    if not options:
        agree([loss], torch_solution(inputs, cross_entropy, way["reduction"])[:1])


def strided(inputs):
    """Nothing is contiguous."""
    found = inputs._replace(
        context=inputs.context.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1),
        log_weight=inputs.log_weight.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        weight=inputs.weight.T.contiguous().T,
        bias=torch.stack([inputs.bias, inputs.bias], -1)[:, 0],
        target=inputs.target.T.contiguous().T,
    )
    assert not any(t.is_contiguous() for t in found)
    return found


def expanded(inputs):
    """All tokens are the first one, without a copy."""
    names = ("context", "log_weight", "target")
    tensors = [getattr(inputs, name) for name in names]
    new = [t[:1, :1].expand(t.shape) for t in tensors]
    return inputs._replace(**dict(zip(names, new, strict=True)))


@pytest.mark.parametrize(
    "shape, change",
    [((4, 9), strided), ((4, 9), expanded), *((s, None) for s in ((2, 3, 2), (2, 0, 2), (1,), ()))],
)
def test_tokens_are_the_leading_dimensions_in_any_memory_layout(
    problem, solve, agree, way, shape, change
):
    inputs = problem(shape) if change is None else change(problem(shape))
    flat = inputs._replace(
        context=inputs.context.reshape(-1, 3, 4).contiguous(),
        log_weight=inputs.log_weight.reshape(-1, 3).contiguous(),
        weight=inputs.weight.contiguous(),
        target=inputs.target.reshape(-1).contiguous(),
    )
    got = solve(inputs, chunk_bytes=400, **way)
    want = solve(flat, **(way | {"backend": "reference"}))
    agree(got, [w.reshape(g.shape) for w, g in zip(want, got, strict=True)])


@pytest.mark.parametrize(
    "dtype, V",
    [(torch.int32, 7), (torch.int8, 300), (torch.uint8, 300), (torch.int16, 40_000)],
    ids=str,
)
def test_targets_of_any_integer_type_mean_the_same(problem, solve, agree, way, dtype, V):
    # V does not fit into the narrow types, nor -100 into uint8, where it would become 156.
    inputs = problem(V=V)._replace(target=torch.tensor([0, 1, 100, 5, 6, 99, 127, 7, 0]) % V)
    agree(solve(inputs._replace(target=inputs.target.to(dtype)), **way), solve(inputs, **way))
    unsigned = problem((1,), V=200)._replace(target=torch.tensor([156], dtype=torch.uint8))
    assert solve(unsigned, **way)[0] > 0


@pytest.mark.parametrize("ignore_index", [-1, 2])
def test_any_index_can_be_the_ignored_one(problem, solve, agree, way, ignore_index):
    inputs, ignored = problem(), torch.arange(9) % 3 == 1
    inputs.target[inputs.target == 2] = 3
    usual = inputs._replace(target=inputs.target.masked_fill(ignored, -100))
    other = inputs._replace(target=inputs.target.masked_fill(ignored, ignore_index))
    got = solve(other, ignore_index=ignore_index, chunk_bytes=400, **way)
    agree(got, solve(usual, **(way | {"backend": "reference"})))


def test_the_token_losses_carry_gradients_only_without_reduction(problem, way):
    context, log_weight, weight, bias, target = problem()
    target[2] = -100
    weight.requires_grad_()
    token_loss, loss, _ = mixture_loss(context, log_weight, weight, target, bias=bias, **way)
    reduction = way["reduction"]
    assert token_loss[2] == 0 and token_loss.requires_grad == (reduction == "none")
    counted = token_loss[target != -100]
    want = token_loss if reduction == "none" else getattr(counted, reduction)()
    torch.testing.assert_close(loss, want)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}], ids=["plain", "general"])
def test_by_products_are_those_of_the_mixture(problem, way, options):
    context, log_weight, weight, bias, target = problem((4, 3))
    target[0, 1] = -100
    also = ("lse", "prediction", "entropy", "log_weight")
    given = {"bias": bias, "also": also, "chunk_bytes": 200, **way, **options}
    found = mixture_loss(context, log_weight, weight, target, **given).by_products
    logits = F.linear(context, weight, bias)
    log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)
    want = {
        "lse": logits.logsumexp(-1),
        "prediction": log_p.argmax(-1),
        "entropy": -(log_p.exp() * log_p).sum(-1),
    }
    kept = target != -100
    for name, value in want.items():
        torch.testing.assert_close(found[name][kept], value[kept])
        assert found[name].shape == value.shape and not found[name][~kept].any()
    assert found["log_weight"] is log_weight
    nothing = torch.full_like(target, -100)
    found = mixture_loss(context, log_weight, weight, nothing, **given).by_products
    assert not any(found[name].any() or found[name].shape != want[name].shape for name in want)


def test_a_learned_map_is_trained_by_the_reference_alone(problem):
    context, log_weight, weight, bias, target = problem()
    learned, options = PiecewiseLinear(5).double(), {"bias": bias}
    given = (context, log_weight, weight, target)
    loss = mixture_cross_entropy(*given, logit_map=learned, backend="reference", **options)
    loss.backward()
    assert learned.score.grad.any()
    learned.requires_grad_(False)
    torch.testing.assert_close(mixture_cross_entropy(*given, logit_map=learned, **options), loss)
