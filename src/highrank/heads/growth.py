"""Turn a mixture of one softmax into K that start out saying the same.

Each new component is the old one with noise, which is what lets them part; the weights start
uniform. The noise of the K components sums to zero, so that without dropout the mixture changes in
second order only. D hidden size, E embedding size.
"""

import torch

from highrank.heads.mos import MixtureOfSoftmaxes

# Of the standard deviation of the latent weights, before the mean over the components is taken out.
# It changes a trained model's loss by 0.001 % (docs/log.md), that of random weights below 0.1 %.
NOISE = 0.05


@torch.no_grad()
def grown(
    head: MixtureOfSoftmaxes, num_components: int, generator: torch.Generator | None = None
) -> MixtureOfSoftmaxes:
    """A mixture of K components from one of a single component; embedding and bias are shared."""
    if head.num_components != 1:
        raise ValueError(f"the head must have one component to grow, got {head.num_components}")
    assert head.latent is not None
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
    assert new.latent is not None
    weight, bias = head.latent.weight, head.latent.bias  # (E, D), (E,)
    noise = torch.randn(num_components, *weight.shape, generator=generator, dtype=weight.dtype)
    noise = (noise - noise.mean(0)).to(weight.device)  # (K, E, D)
    new.latent.weight.copy_((weight + NOISE * weight.std() * noise).flatten(0, 1))
    new.latent.bias.copy_(bias.repeat(num_components))
    new.prior.weight.zero_()
    new.weight, new.bias = head.weight, head.bias
    return new.train(head.training)
