"""Divergences of two distributions over the vocabulary, from tables of log-probabilities.

    forward   KL(T ‖ S) = Σ_v T_v log(T_v / S_v)
    reverse   KL(S ‖ T) = Σ_v S_v log(S_v / T_v)
    js        ½ KL(T ‖ M) + ½ KL(S ‖ M),  M = ½ (T + S)

S is the student's distribution and T the teacher's, each softmax(log p / τ) of the head's
log-probabilities at temperature τ. For one softmax that is dividing its logits by τ; for a mixture
it is not dividing those of the components. V vocabulary; `...` is any leading dimensions.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from highrank.ops.precision import log_add

Direction = Literal["forward", "reverse", "js"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)


def divergence(
    student: Tensor, teacher: Tensor, direction: Direction = "forward", temperature: float = 1.0
) -> Tensor:
    """The divergence in nats (...), from log-probabilities (..., V), by autograd.

    A token of probability 0 counts for nothing. Where the first distribution of a KL has a token
    that the second rules out, it is +inf, without a gradient.
    """
    check_divergence(direction, temperature)
    log_s, log_t = ((x / temperature).log_softmax(-1) for x in (student, teacher))  # (..., V)
    if direction == "forward":
        return _kl(log_t, log_s)
    if direction == "reverse":
        return _kl(log_s, log_t)
    log_m = log_add(log_s, log_t) - math.log(2)  # (..., V)
    return (_kl(log_t, log_m) + _kl(log_s, log_m)) / 2


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ_v p_v (log p_v - log q_v), (...); no infinite number reaches autograd."""
    p = log_p.exp()
    is_counted, is_ruled_out = p > 0, log_q == -torch.inf  # (..., V)
    skipped = ~is_counted | is_ruled_out
    ratio = log_p.masked_fill(skipped, 0.0) - log_q.masked_fill(skipped, 0.0)
    is_infinite = (is_counted & is_ruled_out).any(-1)  # (...)
    return (p * ratio).sum(-1).masked_fill(is_infinite, torch.inf)


def check_divergence(direction: str, temperature: float) -> None:
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {DIRECTIONS}, got {direction!r}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
