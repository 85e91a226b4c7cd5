"""The reference and, with one component, every backend against formulas that we did not write."""

import pytest
import scipy.special
import torch
import torch.nn.functional as F

from highrank.ops.logit_map import Softcap
from highrank.ops.loss import REDUCTIONS
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss


def naive_losses(inputs, cap):
    """In probabilities, by SciPy: softmax, weigh, sum over the components, logarithm."""
    logits = (inputs.context @ inputs.weight.T + inputs.bias).numpy()
    if cap is not None:
        logits = cap * scipy.special.expit(2 * logits / cap) * 2 - cap
    share = scipy.special.softmax(inputs.log_weight.numpy(), axis=-1)
    prob = (share[..., None] * scipy.special.softmax(logits, axis=-1)).sum(-2)
    return -torch.from_numpy(prob[range(9), inputs.target]).log()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("logit_map", [None, Softcap(2.0)])
def test_reference_is_minus_the_log_of_the_weighted_softmaxes(problem, reduction, logit_map):
    inputs = problem()
    context, log_weight, weight, bias, target = inputs
    got = mixture_cross_entropy(
        context,
        log_weight,
        weight,
        target,
        bias=bias,
        logit_map=logit_map,
        reduction=reduction,
        backend="reference",
    )
    want = naive_losses(inputs, logit_map and logit_map.cap)
    torch.testing.assert_close(got, want if reduction == "none" else getattr(want, reduction)())


def one_component(inputs, loss_of, reduction):
    """As `solve` gives it: the loss and its gradients, by one of torch's functions."""
    leaves = [t.detach().requires_grad_() for t in (inputs.context, inputs.weight, inputs.bias)]
    loss = loss_of(leaves[0].squeeze(-2), *leaves[1:], inputs.target, reduction)
    d_context, d_weight, d_bias = torch.autograd.grad(loss, leaves, torch.ones_like(loss))
    # One component of weight one has the whole responsibility: -1, scaled as the loss is.
    counted = inputs.target != -100
    scale = counted.sum() if reduction == "mean" else 1
    return loss.detach(), d_context, -counted[..., None].double() / scale, d_weight, d_bias


def cross_entropy(context, weight, bias, target, reduction):
    return F.cross_entropy(F.linear(context, weight, bias), target, reduction=reduction)


def linear_cross_entropy(context, weight, bias, target, reduction):
    return F.linear_cross_entropy(
        context, weight, target, linear_bias=bias, reduction=reduction, ignore_index=-100
    )


@pytest.mark.parametrize(
    "loss_of",
    [cross_entropy, *([linear_cross_entropy] if hasattr(F, "linear_cross_entropy") else [])],
)
@pytest.mark.parametrize("ignored", [[], [0, 3, 8]], ids=["all", "some ignored"])
def test_one_component_is_torchs_cross_entropy(problem, solve, agree, way, loss_of, ignored):
    inputs = problem(K=1)
    inputs.target[ignored] = -100
    want = one_component(inputs, loss_of, way["reduction"])
    agree(solve(inputs, **way, chunk_bytes=100), want)


@pytest.mark.parametrize("shape, ignored", [((0,), False), ((5,), True)], ids=["empty", "ignored"])
def test_no_target_at_all_is_as_in_torch(problem, solve, agree, way, shape, ignored):
    inputs = problem(shape, K=1)
    if ignored:
        inputs.target.fill_(-100)
    got, want = solve(inputs, **way), one_component(inputs, cross_entropy, way["reduction"])
    agree(got[:1], want[:1])
    assert got[0].isnan().all() if way["reduction"] == "mean" else (got[0] == 0).all()
    assert all((gradient == 0).all() for gradient in got[1:])


def test_equal_components_are_one(problem, solve, way):
    inputs = problem(K=1)
    thrice = inputs._replace(
        context=inputs.context.expand(9, 3, 4), log_weight=problem().log_weight
    )
    torch.testing.assert_close(solve(thrice, **way)[0], solve(inputs, **way)[0])


def test_one_word_is_certain(problem, solve, way):
    loss, *gradients = solve(problem(V=1, scale=100.0), **way)
    assert (loss == 0).all()
    assert all((gradients[i] == 0).all() for i in (0, 2, 3))


def test_token_losses_come_along_and_carry_gradients_only_without_reduction(problem, way):
    context, log_weight, weight, bias, target = problem()
    target[2] = -100
    weight.requires_grad_()
    token_loss, loss, _ = mixture_loss(context, log_weight, weight, target, bias=bias, **way)
    reduction = way["reduction"]
    assert token_loss[2] == 0 and token_loss.requires_grad == (reduction == "none")
    counted = token_loss[target != -100]
    want = token_loss if reduction == "none" else getattr(counted, reduction)()
    torch.testing.assert_close(loss, want)
