"""What the bound costs: two heads fitted to the hidden states of a model that stays as it is.

Both start as the model's own softmax, with the same parameters, noise and batches. One mixes K
contexts and has the bound of one softmax, the other mixes K softmaxes and has none. What the second
predicts better on held-out text is what the bound costs.

N contexts, D hidden size, d size of what meets the output embedding, V vocabulary, K components.
"""

import torch
from torch import nn

from highrank.heads import MixtureHead, MixtureOfContexts, MixtureOfSoftmaxes
from highrank.heads.bases.mixture import PriorMixture
from highrank.heads.bases.start import PRIOR_SCALE, zero_sum_noise
from highrank.heads.linear import LinearHead

NUM_COMPONENTS = 4
# Of the contexts' weights, in standard deviations: enough for components to part.
NOISE = 0.3


def mixture_from(
    kind: type[PriorMixture], head: MixtureHead | LinearHead, noise: float = NOISE, seed: int = 0
) -> PriorMixture:
    """A mixture that predicts nearly what one softmax predicts.

    Args:
        kind: `MixtureOfSoftmaxes` or `MixtureOfContexts`.
        head: one softmax.
        noise: what breaks the symmetry of the components.
    """
    latent: nn.Linear | None = getattr(head, "latent", None)
    size = head.weight.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = kind(
            head.hidden_size,
            head.vocab_size,
            NUM_COMPONENTS,
            size,
            activation=getattr(head, "activation", "identity") if latent else "identity",
            bias=head.bias is not None,
        )
        weight = torch.eye(size) if latent is None else latent.weight.float()  # (d, D)
        spread = zero_sum_noise(weight, NUM_COMPONENTS)  # (K, d, D)
    assert found.latent is not None
    with torch.no_grad():
        found.weight.copy_(head.weight)
        if head.bias is not None:
            found.bias.copy_(head.bias)
        found.latent.weight.copy_((weight + noise * spread).flatten(0, 1))
        found.latent.bias.zero_()
        if latent is not None:
            found.latent.bias.copy_(latent.bias.repeat(NUM_COMPONENTS))
        found.prior.weight.mul_(PRIOR_SCALE)
    found.logit_map = head.logit_map
    return found


HEADS = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}
