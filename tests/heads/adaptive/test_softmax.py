"""Adaptive softmax: torch's own with copied weights, a rank bound."""

import pytest
import torch
from torch import nn

from highrank.heads import AdaptiveSoftmax

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def torchs_own(head):
    """`nn.AdaptiveLogSoftmaxWithLoss` with the head's weights, which has no bias in the tails."""
    own = nn.AdaptiveLogSoftmaxWithLoss(
        head.hidden_size,
        head.vocab_size,
        list(head.cutoffs),
        div_value=head.div_value,
        head_bias=True,
    ).double()
    bands = [weight for weight, _ in head._bands()]
    with torch.no_grad():
        head.bias[head.num_frequent :] = 0
        own.head.weight.copy_(bands[0])
        own.head.bias.copy_(torch.cat([head.bias[: head.num_frequent], head.class_bias]))
        for tail, (layer, weight) in enumerate(zip(head.latents, bands[1:], strict=True)):
            own.tail[tail][0].weight.copy_(layer.weight)
            own.tail[tail][1].weight.copy_(weight)
    return own


@pytest.mark.parametrize("div_value", [1, 2, 4])
@pytest.mark.parametrize("cutoffs", [(), (12,), (9, 15)])
def test_it_is_torchs_adaptive_softmax(generic, target, div_value, cutoffs):
    head = generic(AdaptiveSoftmax(70, 23, None, frequent=5, cutoffs=cutoffs, div_value=div_value))
    own, hidden = torchs_own(head), torch.randn(40, 70).double().requires_grad_()
    torch.testing.assert_close(head.log_prob(hidden), own.log_prob(hidden), **EXACT)
    got, want = head(hidden, target), own(hidden, target)
    torch.testing.assert_close(tuple(got), (want.output.detach(), want.loss), **EXACT)
    leaves = [(hidden, hidden), *zip(head.latents.parameters(), _projections(own), strict=True)]
    mine = torch.autograd.grad(got.loss, [leaf for leaf, _ in leaves])
    torchs = torch.autograd.grad(want.loss, [leaf for _, leaf in leaves])
    torch.testing.assert_close(mine, torchs, **EXACT)
    assert torch.equal(head.predict(hidden), own.predict(hidden))


def _projections(own):
    return [tail[0].weight for tail in own.tail]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cutoffs", [(), (50, 80)])
@pytest.mark.parametrize(
    "size, options, num_contexts",
    [
        (None, {}, lambda m, bias: 5 + bias),
        (None, {"div_value": 2}, lambda m, bias: 5 + bias),
        (3, {}, lambda m, bias: 3 * (m + 1) + bias),
        # The contexts are linear in a state of five numbers, and the layers have a constant.
        (3, {"activation": "identity"}, lambda m, bias: 6),
        (2, {"activation": "identity"}, lambda m, bias: min(6, 2 * (m + 1) + bias)),
    ],
)
def test_the_rank_of_log_prob_is_exactly_the_bound(
    generic, bias, cutoffs, size, options, num_contexts
):
    head = generic(
        AdaptiveSoftmax(5, 110, size, frequent=30, cutoffs=cutoffs, bias=bias, **options)
    )
    log_prob = head.log_prob(torch.randn(120, 5).double())
    m = 1 + len(cutoffs)
    assert head.rank_bound == num_contexts(m, bias) + m + 1
    assert torch.linalg.matrix_rank(log_prob) == head.rank_bound


def test_auto_takes_the_cheapest_number_of_frequent_tokens():
    head = AdaptiveSoftmax(6, 1000, 4)
    assert head.cutoffs == (head.num_frequent,) and 100 < head.num_frequent < 300
    steep = [1000 if token in (3, 700) else 1 for token in range(1000)]
    head = AdaptiveSoftmax(6, 1000, 4, token_counts=steep)
    assert head.order[:2].tolist() == [3, 700]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"frequent": 0}, "frequent must be from 1 to 23, or auto, got 0"),
        ({"frequent": 24}, "frequent must be from 1 to 23, or auto, got 24"),
        ({"frequent": 9, "cutoffs": (9,)}, r"cutoffs must rise .* below 23, got \[9, 9\]"),
        ({"frequent": 9, "cutoffs": (23,)}, r"cutoffs must rise .* below 23, got \[9, 23\]"),
        ({"div_value": 0.5}, "div_value must be at least 1, got 0.5"),
        ({"activation": "relu"}, r"activation must be one of \['tanh', 'identity'\], got 'relu'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"token_counts": [1]}, "token_counts must have 23 numbers, got 1"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        AdaptiveSoftmax(6, 23, 4, **options)


def test_repr_says_what_was_asked_for():
    text = repr(AdaptiveSoftmax(6, 23, None, frequent=5, cutoffs=(9,), bias=False))
    assert "hidden_size=6, vocab_size=23, embedding_size=6, bias=False, cutoffs=(5, 9)" in text
