"""The verification matrix: limits in which one head is another, to 1e-10, gradients included.

softmax = MoS = DOC = sparse MoS = low-rank MoS (K = 1) = partition (P = 1, or equal contexts)
        = adaptive softmax without tails = GSS of slope 1
        = softcap without end = PLIF of slopes 1 = sigsoftmax far up = MFS (K = P = 1)
MoC = Mixtape without gates
MoS = DOC of the last layer = sparse MoS of all components = adaptive MoS of frequent tokens
    = one softmax over sums of exponentials = pointer and constants without weight
adaptive softmax = adaptive MoS (K = 1) = torch's = adaptive pointer without weight
partition = Mixtape with closed gates (test_partition.py); torch's: adaptive/test_softmax.py
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from highrank.heads import (
    AdaptiveMixtureOfSoftmaxes,
    AdaptiveSoftmax,
    Composed,
    Constant,
    DirectOutputConnection,
    Head,
    LowRankMixture,
    Mixtape,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    MultiFacetSoftmax,
    PartitionedSoftmax,
    Pointer,
    Pointwise,
    Softmax,
    SparseMixtureOfSoftmaxes,
)

T, B, D, E, V = 4, 3, 6, 4, 11
COUNTS = [7 * token % V for token in range(V)]
LAST = {"layers": (-1,)}


class Case(NamedTuple):
    head: Callable[[], Head]
    other: Callable[[], Head]
    change: Callable[[Head], None] = lambda head: None
    """What brings the head to its limit, after it has the other's parameters."""


def closed(head):
    """Further components have no weight."""
    nn.init.zeros_(head.gate.weight)
    nn.init.constant_(head.gate.bias, -1000.0)


def straight(head):
    nn.init.constant_(head.logit_map.score, math.log(math.e - 1))


def identity_facets(head):
    """One facet that is the hidden state."""
    nn.init.zeros_(head.latent.weight)
    nn.init.zeros_(head.latent.bias)
    head.latent.weight.data[:, :D] = torch.eye(D)


def softmax():
    return Softmax(D, V, E)


def mos():
    return MixtureOfSoftmaxes(D, V, 3, E)


def pointwise(name, K=1):
    return lambda: Pointwise(D, V, K, E, logit_map=name)


def adaptive(kind, *sizes, frequent=4):
    return lambda: kind(D, V, *sizes, E, frequent=frequent, token_counts=COUNTS)


SOFTMAX = {
    "mos": Case(lambda: MixtureOfSoftmaxes(D, V, 1, E), softmax),
    "mos, equal": Case(mos, softmax),
    "moc": Case(lambda: MixtureOfContexts(D, V, 1, E), softmax),
    "doc": Case(lambda: DirectOutputConnection(D, V, 1, E, **LAST), softmax),
    "sparse-mos": Case(lambda: SparseMixtureOfSoftmaxes(D, V, 1, E), softmax),
    "sparse-mos, equal": Case(lambda: SparseMixtureOfSoftmaxes(D, V, 3, E, num_active=1), softmax),
    "low-rank-mos": Case(
        lambda: LowRankMixture(D, V, 3, E, rank=2), softmax, lambda head: nn.init.zeros_(head.up)
    ),
    "low-rank-mos, hidden": Case(
        lambda: LowRankMixture(D, V, 3, None, rank=2),
        lambda: Softmax(D, V),
        lambda head: nn.init.zeros_(head.up),
    ),
    "partition": Case(lambda: PartitionedSoftmax(D, V, E, num_partitions=1), softmax),
    "partition, equal": Case(lambda: PartitionedSoftmax(D, V, E, num_partitions=4), softmax),
    "mixtape, equal": Case(lambda: Mixtape(D, V, 4, E, frequent_fraction=0.4), softmax),
    "adaptive-softmax": Case(adaptive(AdaptiveSoftmax, frequent=V), softmax),
    "gss": Case(pointwise("gss:0.7,1"), softmax),
    "softcap": Case(pointwise("softcap:10000000"), softmax),
    "plif": Case(pointwise("plif:5"), softmax, straight),
    "sigsoftmax": Case(pointwise("sigsoftmax"), softmax, lambda head: head.bias.data.add_(50.0)),
    "mfs": Case(
        lambda: MultiFacetSoftmax(D, V, 1, D, num_partitions=1),
        lambda: Softmax(D, V),
        identity_facets,
    ),
}
OTHERS = {
    "mixtape": Case(
        lambda: Mixtape(D, V, 2, E, frequent_fraction=0.0),
        lambda: MixtureOfContexts(D, V, 2, E),
    ),
    "doc": Case(lambda: DirectOutputConnection(D, V, 3, E, **LAST), mos),
    "sparse-mos": Case(lambda: SparseMixtureOfSoftmaxes(D, V, 3, E, num_active=3), mos),
    "adaptive-mos": Case(adaptive(AdaptiveMixtureOfSoftmaxes, 3, frequent=V), mos),
    "pointwise": Case(pointwise("gss:-2,1", 3), mos),
    "pointwise, plif": Case(pointwise("plif:5", 3), mos, straight),
    "mos+pointer": Case(lambda: Composed(mos(), [Pointer(D, V, num_states=2)]), mos, closed),
    "mos+constant": Case(lambda: Composed(mos(), [Constant(D, V)]), mos, closed),
    "adaptive-mos, K=1": Case(adaptive(AdaptiveMixtureOfSoftmaxes, 1), adaptive(AdaptiveSoftmax)),
    "adaptive-softmax+pointer": Case(
        lambda: Composed(adaptive(AdaptiveSoftmax)(), [Pointer(D, V)]),
        adaptive(AdaptiveSoftmax),
        closed,
    ),
}
CASES = {f"{name} is softmax": case for name, case in SOFTMAX.items()} | OTHERS


def give(head, other):
    """The other head's parameters, by their names, repeated where the head has more of them."""
    known = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            name = name.removeprefix("base.")
            # The layers of an adaptive head's bands, and of a plain one.
            source = known.get(name)
            if source is None and name.startswith("latents."):
                source = known.get("latent" + name[len("latents.0") :])
            if source is None:
                continue
            if name == "prior.weight" and parameter.shape != source.shape:
                continue
            parameter.copy_(source.repeat(len(parameter) // len(source), *[1] * (source.dim() - 1)))


@pytest.fixture(params=CASES)
def pair(request, generic):
    case = CASES[request.param]
    head, other = generic(case.head()), generic(case.other())
    give(head, other)
    case.change(head)
    if isinstance(head, Mixtape) and head.num_components == 2:
        # σ(s) and 1 - σ(s) are the softmax of s and 0.
        with torch.no_grad():
            head.shared_gate.weight.copy_(other.prior.weight[:1] - other.prior.weight[1:])
    return head, other


def results(head, hidden, tokens, target):
    """log p, the loss without a penalty, and the gradients of both in the hidden states."""
    head.eval()
    hidden = hidden.clone().requires_grad_()
    past = {"tokens": tokens, "state": head.initial_state(B)} if head.is_stateful else {}
    log_p, (output, loss) = head.log_prob(hidden, **past), head(hidden, target, **past)
    weight = torch.linspace(-1, 1, log_p.numel(), dtype=torch.float64).reshape(log_p.shape)
    gradients = [torch.autograd.grad(x, hidden)[0] for x in ((weight * log_p).sum(), loss)]
    return [log_p.detach(), output.detach(), loss.detach(), *gradients]


def test_in_the_limit_one_head_is_another(pair):
    hidden, tokens = torch.randn(T, B, D).double(), torch.randint(V, (T, B))
    target = torch.randint(V, (T, B))
    got, want = (results(head.eval(), hidden, tokens, target) for head in pair)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_one_softmax_over_sums_of_exponentials_is_a_mixture_of_softmaxes(generic):
    """p ∝ Σ_k exp(w · h_k + s_k): with the prior s + log Z of each component's normaliser Z."""
    head, hidden = generic(mos()), torch.randn(7, D).double()
    score, context = head.prior(hidden), head.mixture(hidden).context
    logits = nn.functional.linear(context, head.weight, head.bias)  # (N, K, V)
    want = (logits + score[..., None]).logsumexp(-2).log_softmax(-1)
    log_weight = (score + logits.logsumexp(-1)).log_softmax(-1)
    got = head.log_prob_from((log_weight, context))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
