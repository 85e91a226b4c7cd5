"""Contexts that start nearly equal: all the same, plus noise that sums to zero.

The mixture then begins as one softmax would, and learns as fast as one, while its components are
free to specialise. The noise of the K components sums to zero, so that the mixture changes in
second order only. K components, E embedding size, D hidden size.
"""

from collections.abc import Iterable
from typing import TypeGuard

import torch
from torch import Tensor, nn

# Factor of the prior's weights at a nearly equal start: almost uniform mixtures.
PRIOR_SCALE = 0.1


def zero_sum_noise(weight: Tensor, num_components: int) -> Tensor:
    """(K, *weight.shape), in standard deviations of `weight`; its sum over K is zero."""
    noise = torch.randn(num_components, *weight.shape, dtype=weight.dtype)
    return (noise - noise.mean(0)).to(weight.device) * weight.std(correction=0)


@torch.no_grad()
def start_nearly_equal(
    latents: Iterable[tuple[nn.Linear, int]], priors: Iterable[Tensor], noise: float | None
) -> None:
    """Give all contexts of a layer the first one's values plus noise, and the priors small ones.

    Without noise all stay as they were drawn, independently.

    Args:
        latents: layers D → K · E, freshly initialised, each with its K.
        priors: what the weights of the components are made with, freshly initialised.
        noise: in standard deviations of the first context's weights.
    """
    if not is_start_noise(noise):
        return
    for latent, num_components in latents:
        weight = latent.weight[: len(latent.weight) // num_components].clone()  # (E, D)
        spread = zero_sum_noise(weight, num_components)  # (K, E, D)
        latent.weight.copy_((weight + noise * spread).flatten(0, 1))
        latent.bias.copy_(latent.bias[: len(weight)].repeat(num_components))
    for prior in priors:
        prior.mul_(PRIOR_SCALE)


def is_start_noise(noise: float | None) -> TypeGuard[float]:
    """Whether there is any; raise for a value that is none."""
    if noise is not None and not 0 <= noise < float("inf"):
        raise ValueError(f"start_noise must be finite and at least 0, got {noise}")
    return noise is not None
