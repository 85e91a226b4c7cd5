"""Heads that start as a trained output layer: every log-probability stays what it was.

    residual  h_k = h + A_k tanh(B_k h)   A_k small, B_k random: 2 K r D new numbers
    identity  h_k = (I + noise_k) h       the noise of all components sums to zero: K D² new numbers
    new       as residual, but the first component is the old layer and has nearly all the weight
    random    as the head's constructor makes it: for a model that is trained from scratch

The weights of the components are equal at first, but for "new". Noise breaks their symmetry; it is
made so small that no log-probability of the states that are tried changes by more than 2e-6. What
adds components of near-zero weight ("new", and "mos+constant") changes each distribution by at
most that weight, in total variation: a token of nearly no probability can gain a lot.

n states, K components, D hidden size, V vocabulary, r rank.
"""

import math
from inspect import Parameter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.heads import Composed, Head, head_arguments, head_class
from highrank.heads.linear import LinearHead
from highrank.heads.low_rank_mos import LowRankMixture
from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.integrations.huggingface.output_layer import head_from

# The kinds of heads that start as a trained layer; the first start of each is the default.
STARTS = {
    "mos": {"residual": "low-rank-mos", "identity": "mos", "new": "low-rank-mos"},
    "mos+constant": {"identity": "mos+constant"},
    "softmax": {"identity": "softmax"},
}
# Arguments of a head that are no options of it, and one that is as long as the vocabulary.
NOT_STORED = ("hidden_size", "vocab_size", "device", "dtype", "token_counts")
FIXED = ("hidden_size", "vocab_size", "device", "dtype", "bias", "batch_first", "embedding_size")
OF_START = ("activation", "prior_bias", "start_noise")
# Noise that is tried first; half of it is tried until it changes log-probabilities by this at most.
NOISE, NUM_TRIALS, TOLERANCE = 1e-4, 40, 2e-6
# Weight of all components that are added beside the old layer.
NEAR_ZERO = 1e-4


class Started(NamedTuple):
    spec: dict[str, Any]
    head: Head
    added_weight: float | None
    """Weight of all components beside the old layer; None if the old layer is forgotten."""


def start_head(
    layer: LinearHead,
    hidden: Tensor,
    kind: str,
    num_components: int,
    start: str | None,
    noise: float,
    options: dict[str, Any],
) -> Started:
    """A head that predicts what the layer predicts, with the layer's weight and bias.

    Args:
        hidden: (n, D), states that the layer meets.
        kind, num_components, start, noise, options: as of `upgrade`.
    """
    key, start = _check_start(kind, start, noise)
    taken = FIXED if start == "random" else FIXED + OF_START
    if found := [name for name in options if name in taken]:
        raise ValueError(f"{found[0]} must be left out, got one: the model or the start decides it")
    vocab_size, hidden_size = layer.weight.shape
    values = _options(key, start, num_components, layer) | options
    # Counts of tokens are stored as weights are: a configuration is no place for so many numbers.
    stored = {name: value for name, value in values.items() if name != "token_counts"}
    spec = {"kind": key, "options": stored, "softcap": layer.softcap, "scale": layer.scale}
    head = head_from({**spec, "options": values}, hidden_size, vocab_size)
    head.to(layer.weight)
    if start == "random":
        return Started(spec, head, None)
    added = 0.0
    if isinstance(head, LowRankMixture) and start == "new":
        added = _start_new(head, layer, hidden)
    elif isinstance(head, LowRankMixture):
        _start_residual(head, layer, hidden, noise)
    elif isinstance(head.core, MixtureOfSoftmaxes):
        _start_identity(head.core, layer, hidden, noise)
        added = NEAR_ZERO if isinstance(head, Composed) else 0.0
    return Started(spec, head, added)


def _options(key: str, start: str, num_components: int, layer: LinearHead) -> dict[str, Any]:
    """All options of the head's constructor: a folder is not to depend on tomorrow's defaults."""
    arguments = head_arguments(key)
    given = {n: a.default for n, a in arguments.items() if a.default is not Parameter.empty}
    values = {
        "num_components": num_components,
        "embedding_size": None if key in ("softmax", "low-rank-mos") else layer.weight.shape[1],
        "activation": "identity",
        "bias": layer.bias is not None,
        "batch_first": True,
        "constant_weight": NEAR_ZERO,
        "prior_bias": start == "new",
    }
    values = given | {name: value for name, value in values.items() if name in arguments}
    return {name: value for name, value in values.items() if name not in NOT_STORED}


def _check_start(kind: str, start: str | None, noise: float) -> tuple[str, str]:
    """The key of `HEADS`, and the start."""
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and at least 0, got {noise}")
    head_class(kind)
    starts = STARTS.get(kind, {})
    if start is None:
        start = next(iter(starts), None)
    if start == "random":
        return kind, start
    if start not in starts:
        names = [*(repr(name) for name in starts), "'random' (to train from scratch)"]
        raise ValueError(f"start must be {' or '.join(names)} for {kind}, got {start!r}")
    return starts[start], start


@torch.no_grad()
def _start_residual(head: LowRankMixture, layer: LinearHead, hidden: Tensor, noise: float) -> None:
    head.prior.weight.zero_()
    low = _low(head, layer, hidden)  # (n, K, r)
    head.up.normal_()
    shift = torch.einsum("nkr,kre->nke", low, head.up.float())
    head.up.mul_(_largest_noise(layer, hidden, shift, noise))


@torch.no_grad()
def _start_new(head: LowRankMixture, layer: LinearHead, hidden: Tensor) -> float:
    """Start as "new"; returns the weight of all components but the first."""
    K = head.num_components
    if K < 2:
        raise ValueError(f"num_components must be at least 2 for the start 'new', got {K}")
    _low(head, layer, hidden)
    head.up[0] = 0
    head.prior.weight.zero_()
    head.prior.bias.fill_(math.log(NEAR_ZERO / (K - 1)))
    head.prior.bias[0] = math.log1p(-NEAR_ZERO)
    return NEAR_ZERO


def _low(head: LowRankMixture, layer: LinearHead, hidden: Tensor) -> Tensor:
    """tanh(B_k h), (n, K, r), with B_k scaled to what these states need to bend it a little."""
    scaled = hidden * layer.scale
    head.down.weight.div_(scaled.square().mean().sqrt().clamp_min(1e-6))
    low = torch.tanh(F.linear(scaled, head.down.weight.float()))
    found: Tensor = low.unflatten(-1, (head.num_components, head.rank))
    return found


@torch.no_grad()
def _start_identity(
    head: MixtureOfSoftmaxes, layer: LinearHead, hidden: Tensor, noise: float
) -> None:
    assert head.latent is not None
    weight = head.latent.weight
    spread = torch.randn(head.num_components, *layer.weight.shape[1:] * 2)  # (K, D, D)
    spread = (spread - spread.mean(0)).to(weight.device)
    shift = torch.einsum("ked,nd->nke", spread, hidden * layer.scale)
    spread.mul_(_largest_noise(layer, hidden, shift, noise))
    spread.diagonal(dim1=1, dim2=2).add_(1.0)
    weight.copy_(spread.flatten(0, 1))
    head.latent.bias.zero_()
    head.prior.weight.zero_()


def _largest_noise(layer: LinearHead, hidden: Tensor, shift: Tensor, noise: float) -> float:
    """The noise, or as much of it as changes no log-probability by more than `TOLERANCE`.

    Args:
        shift: (n, K, D), of the contexts, for noise of 1.
    """
    prob = layer.logits(hidden).softmax(-1).unsqueeze(1)  # (n, 1, V)
    # A softcap makes it smaller.
    shift = LinearHead(layer.weight).logits(shift)  # (n, K, V)
    for _ in range(NUM_TRIALS):
        # Of differences, so that nothing is rounded away.
        moved = noise * shift
        moved = moved - (prob * moved.expm1()).sum(-1, keepdim=True).log1p()
        change = moved.expm1().mean(1).log1p()  # (n, V)
        if change.abs().max().item() <= TOLERANCE:
            break
        noise /= 2
    return noise
