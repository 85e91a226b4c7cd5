"""Turn a mixture of one component into K that start out nearly equal.

Each new component is the old one with noise, which lets them specialise; the weights start
uniform. The noise of the K components sums to zero, so that the mixture changes in second order
only: the components may differ a lot before their mixture does. K components.
"""

import copy
import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from highrank.heads.base import Head
from highrank.heads.sparse_mos import SparseMixtureOfSoftmaxes
from highrank.heads.start import PRIOR_SCALE, zero_sum_noise

# The noise that is tried first, in standard deviations of the weights; then half, and so on.
LARGEST_NOISE, NUM_TRIALS = 0.8, 40
# How much the loss may change, relative to itself.
TOLERANCE = 1e-3

H = TypeVar("H", bound=Head)


def can_grow(kind: type[Head]) -> bool:
    """Whether heads of this class can start with one component and become K."""
    return kind.renew_components is not Head.renew_components


@torch.no_grad()
def grown(
    head: H,
    num_components: int,
    hidden: Tensor,
    target: Tensor,
    generator: torch.Generator | None = None,
    **past: Any,
) -> H:
    """A mixture of K components from one of a single component; all else is shared.

    It has as much noise as changes the loss of these states, without dropout, by at most 0.1 %.

    Args:
        hidden: (..., D), hidden states that the head meets.
        target: (...), the tokens that followed them.
        past: `tokens` and `state`, of a stateful head.
    """
    if not can_grow(type(head)) or head.num_components != 1:
        found = f"{type(head).__name__} with {head.num_components}"
        raise ValueError(f"the head must be a mixture with one component to grow, got {found}")
    loss = _loss(head, hidden, target, past)
    if not math.isfinite(loss):
        raise ValueError(f"the states must have a finite loss, got {loss}")
    new = with_components(head, num_components)
    spread = _repeated(head, new, generator)
    for trial in range(NUM_TRIALS):
        for parameter, old, noise in spread:
            parameter.copy_((old + LARGEST_NOISE / 2**trial * noise).flatten(0, 1))
        if abs(_loss(new, hidden, target, past) - loss) <= TOLERANCE * loss:
            break
    return new


def with_components(head: H, num_components: int) -> H:
    """A head with K components of fresh values; whatever no component owns is shared."""
    shared = {id(tensor): tensor for tensor in (*head.parameters(), *head.buffers())}
    new = copy.deepcopy(head, shared)
    new.renew_components(num_components)
    return new


def _repeated(
    head: Head, new: Head, generator: torch.Generator | None
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Give each new component the values of the old one.

    Returns the matrices among them, each with its old value and noise (K, *its shape).
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    K, known = new.num_components, dict(head.named_parameters())
    for name, parameter in new.named_parameters():
        old = known[name]
        if parameter is old:
            continue
        if name.endswith("prior.weight"):
            # Where only the largest weights count they must not all be equal.
            is_sparse = isinstance(new, SparseMixtureOfSoftmaxes)
            parameter.mul_(PRIOR_SCALE if is_sparse else 0.0)
            continue
        parameter.copy_(old.repeat(K, *[1] * (old.dim() - 1)))
        if old.dim() > 1:
            found.append((parameter, old, zero_sum_noise(old, K, generator)))
    return found


def _loss(head: Head, hidden: Tensor, target: Tensor, past: dict[str, Any]) -> float:
    """Without dropout."""
    was_training = head.training
    loss: float = head.eval()(hidden, target, **past).loss.item()
    head.train(was_training)
    return loss
