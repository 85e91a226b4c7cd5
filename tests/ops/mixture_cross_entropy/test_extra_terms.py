"""Further terms of the mixture: a pointer, constant distributions, n-grams, by their target only.

N tokens, K components, J further terms, E embedding size, V vocabulary.
"""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

N, K, J, E, V = 9, 3, 2, 4, 7


def make_tensors(bias=True, seed=0):
    """Leaves: context, weight, bias, the logits of all K + J weights, logits of the constants."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((N, K, E), (V, E), (V,), (N, K + J), (J, V))
    found = [torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes]
    target = torch.randint(V, (N,), generator=generator)
    return [t.requires_grad_() for t in found], target


def loss_of(tensors, target, **options):
    context, weight, bias, prior, constants = tensors
    log_weight = prior.log_softmax(-1)  # (N, K + J)
    log_prob = constants.log_softmax(-1).T[target.clamp(min=0)]  # (N, J)
    extra = (log_weight[:, K:], log_prob)
    return mixture_cross_entropy(
        context, log_weight[:, :K], weight, target, bias=bias, extra=extra, **options
    )


def dense_loss(tensors, target):
    """Through all probabilities."""
    context, weight, bias, prior, constants = tensors
    share = prior.softmax(-1)
    p = (share[:, :K, None] * (context @ weight.T + bias).softmax(-1)).sum(1)
    p = p + share[:, K:] @ constants.softmax(-1)
    return -p[torch.arange(N), target].log()


def test_they_join_the_sum_under_the_logarithm(way, agree):
    tensors, target = make_tensors()
    want = dense_loss(tensors, target)
    want = want if way["reduction"] == "none" else getattr(want, way["reduction"])()
    got = loss_of(tensors, target, chunk_bytes=1600, **way)
    wants, gots = ((x, *torch.autograd.grad(x.sum(), tensors)) for x in (want, got))
    agree(gots, wants)


def test_ignored_targets_leave_their_terms_without_gradient(way):
    tensors, target = make_tensors()
    target[::3] = -100
    loss_of(tensors, target, **way).sum().backward()
    assert (tensors[3].grad[::3] == 0).all() and (tensors[3].grad[1::3] != 0).all()


def test_a_term_makes_an_impossible_target_possible(way):
    tensors, target = make_tensors()
    with torch.no_grad():
        tensors[2][target[0]] = -torch.inf
    loss = loss_of(tensors, target, **way)
    grads = torch.autograd.grad(loss.sum(), tensors)
    assert loss.isfinite().all() and all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_are_those_of_finite_differences(way, check):
    tensors, target = make_tensors()
    assert check(lambda *t: loss_of(t, target, **way), tensors)


def test_second_derivatives_know_a_missing_bias():
    (context, weight, _, prior, constants), target = make_tensors()

    def loss(*tensors):
        context, weight, *rest = tensors
        return loss_of((context, weight, None, *rest), target)

    assert gradgradcheck(loss, (context, weight, prior, constants))


def test_gradients_arrive_once_per_saved_tensor():
    """Hooks that offload or recompute saved tensors work once for each of them."""
    tensors, target = make_tensors()
    packed, unpacked = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(1) or t, lambda t: unpacked.append(1) or t
    ):
        context, weight, bias, *_ = tensors
        log_weight = torch.zeros(N, K, dtype=torch.float64, requires_grad=True)
        loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias)
    loss.backward()
    assert len(unpacked) == len(packed)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_can_be_checkpointed(reduction):
    tensors, target = make_tensors()

    def loss(*tensors):
        return loss_of(tensors, target, reduction=reduction).sum()

    want = torch.autograd.grad(loss(*tensors), tensors)
    again = torch.utils.checkpoint.checkpoint(loss, *tensors, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, tensors), want)
