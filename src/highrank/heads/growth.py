"""Turn a mixture of one softmax into K that start out saying the same.

Each new component is the old one with a little noise, which is what lets them part; the weights
start uniform. D hidden size, E embedding size.
"""

import torch

from highrank.heads.mos import MixtureOfSoftmaxes

# Of the standard deviation of the latent weights. For hidden states inside ±1, such as an LSTM's,
# the loss changes by less than 0.1 %.
NOISE = 0.02


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
    copies = weight.repeat(num_components, 1)  # (K·E, D)
    noise = torch.randn(copies.shape, generator=generator, dtype=copies.dtype).to(copies.device)
    new.latent.weight.copy_(copies + NOISE * weight.std() * noise)
    new.latent.bias.copy_(bias.repeat(num_components))
    new.prior.weight.zero_()
    new.weight, new.bias = head.weight, head.bias
    return new.train(head.training)
