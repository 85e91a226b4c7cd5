"""Turn a mixture of one softmax into K that start out nearly equal.

Each new component is the old one with noise, which lets them specialise; the weights start
uniform. The noise of the K components sums to zero, so that the mixture changes in second order
only: the components may differ a lot before their mixture does. D hidden size, E embedding size.
"""

import math

import torch
from torch import Tensor

from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.heads.start import zero_sum_noise

# The noise that is tried first, in standard deviations of the latent weights; then half, and so on.
LARGEST_NOISE, NUM_TRIALS = 0.8, 40
# How much the loss may change, relative to itself.
TOLERANCE = 1e-3


@torch.no_grad()
def grown(
    head: MixtureOfSoftmaxes,
    num_components: int,
    hidden: Tensor,
    target: Tensor,
    generator: torch.Generator | None = None,
) -> MixtureOfSoftmaxes:
    """A mixture of K components from one of a single component; embedding and bias are shared.

    It has as much noise as changes the loss of these states, without dropout, by at most 0.1 %.

    Args:
        hidden: (..., D), hidden states that the head meets.
        target: (...), the tokens that followed them.
    """
    if not isinstance(head, MixtureOfSoftmaxes) or head.num_components != 1:
        found = f"{type(head).__name__} with {head.num_components}"
        raise ValueError(f"the head must be a mixture with one component to grow, got {found}")
    new = with_components(head, num_components)
    assert head.latent is not None and new.latent is not None
    weight, bias = head.latent.weight, head.latent.bias  # (E, D), (E,)
    new.latent.bias.copy_(bias.repeat(num_components))
    new.prior.weight.zero_()
    noise = zero_sum_noise(weight, num_components, generator)  # (K, E, D)
    loss = _loss(head, hidden, target)
    if not math.isfinite(loss):
        raise ValueError(f"the states must have a finite loss, got {loss}")
    for trial in range(NUM_TRIALS):
        new.latent.weight.copy_((weight + LARGEST_NOISE / 2**trial * noise).flatten(0, 1))
        if abs(_loss(new, hidden, target) - loss) <= TOLERANCE * loss:
            break
    return new.train(head.training)


def with_components(head: MixtureOfSoftmaxes, num_components: int) -> MixtureOfSoftmaxes:
    """A head of K components as its constructor makes it; embedding and bias are shared."""
    new = MixtureOfSoftmaxes(
        head.hidden_size,
        head.vocab_size,
        num_components,
        head.embedding_size,
        activation=head.activation,
        dropout=head.dropout,
        bias=head.bias is not None,
        batch_first=head.batch_first,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    new.weight, new.bias = head.weight, head.bias
    return new


def _loss(head: MixtureOfSoftmaxes, hidden: Tensor, target: Tensor) -> float:
    """Without dropout."""
    was_training = head.training
    loss: float = head.eval()(hidden, target).loss.item()
    head.train(was_training)
    return loss
