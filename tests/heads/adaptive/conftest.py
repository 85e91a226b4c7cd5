"""Adaptive heads of every form: D = 6, V = 23, K = 3, E = 4, ids not by frequency."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import AdaptiveMixtureOfSoftmaxes, AdaptiveSoftmax

V = 23
COUNTS = [(7 * token) % V for token in range(V)]


def softmax(size=4, **options):
    return AdaptiveSoftmax(6, V, size, token_counts=COUNTS, **options)


def mos(**options):
    return AdaptiveMixtureOfSoftmaxes(6, V, 3, 4, token_counts=COUNTS, **options)


HEADS = {
    "softmax": lambda **options: softmax(frequent=7, **options),
    "softmax of the hidden state": lambda **options: softmax(None, frequent=7, **options),
    "softmax, two narrow tails": lambda **options: softmax(
        frequent=5, cutoffs=(14,), div_value=2, **options
    ),
    "softmax without tails": lambda **options: softmax(frequent=V, **options),
    "mos": lambda **options: mos(frequent=7, **options),
    "mos, three tails": lambda **options: mos(frequent=5, cutoffs=(9, 16), **options),
    "mos, mixed and narrow tail": lambda **options: mos(
        frequent=5, cutoffs=(14,), div_value=2, mix_first_tail=True, **options
    ),
}


@pytest.fixture(params=HEADS)
def build(request):
    return HEADS[request.param]


@pytest.fixture
def head(build, generic):
    return generic(build())


@pytest.fixture
def hidden():
    return torch.randn(40, 6, dtype=torch.float64)


@pytest.fixture
def target():
    """Every token, some twice."""
    return torch.arange(40) % V


@pytest.fixture(scope="session")
def reference():
    """log p by the definition: every table in memory, autograd for the gradients."""
    return _log_prob


def _log_prob(head, hidden):
    """(..., V) without dropout, from the parameters alone; ids by a loop over tokens."""
    order = head.order.tolist()
    bands = [order[a:b] for a, b in zip((0, *head.cutoffs), (*head.cutoffs, None), strict=True)]
    log_weight = hidden.new_zeros(*hidden.shape[:-1], 1)
    if hasattr(head, "prior"):
        log_weight = head.prior(hidden).log_softmax(-1)
    logits = [_logits(head, bands, band, hidden) for band in range(len(bands))]
    first = _mixed(logits[0], log_weight)  # (..., R + m)
    columns = {token: first[..., place] for place, token in enumerate(bands[0])}
    for band in range(1, len(bands)):
        weights = log_weight if head.components[band] > 1 else torch.zeros_like(log_weight[..., :1])
        inside = _mixed(logits[band], weights) + first[..., len(bands[0]) + band - 1, None]
        columns |= {token: inside[..., place] for place, token in enumerate(bands[band])}
    return torch.stack([columns[token] for token in range(len(order))], -1)


def _logits(head, bands, band, hidden):
    """(..., K, columns), the classes among the first band's."""
    if head.has_latent:
        context = head.latents[band](hidden)
        context = context.tanh() if head.activation == "tanh" else context
    else:
        context = hidden if band == 0 else head.latents[band - 1](hidden)
    weight = head.weights[band] if head.is_banded else head.weight[bands[band]]
    bias = head.bias[bands[band]]
    if band == 0 and head.class_weight is not None:
        weight, bias = torch.cat([weight, head.class_weight]), torch.cat([bias, head.class_bias])
    return F.linear(context.unflatten(-1, (head.components[band], -1)), weight, bias)


def _mixed(logits, log_weight):
    return torch.logsumexp(log_weight[..., None] + logits.log_softmax(-1), -2)
