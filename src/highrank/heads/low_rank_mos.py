"""Mixture of softmaxes whose contexts differ by a residual of low rank.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P hidden),  h_k = h + A_k tanh(B_k hidden)

h is the hidden state itself or tanh(L hidden + c). Each component has r (D + E) numbers of its own
instead of D · E. It is the form that lets a trained softmax become a mixture: with A = 0 all
components are that softmax. The low rank adds to the state and must not replace it: contexts of low
rank alone lost 0.9 bits per byte and more in public trials (docs/heads.md).
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from highrank.heads.bases.embedding import ContextOptions
from highrank.heads.bases.mixture import Mixture, MixtureHead, log_weights
from highrank.heads.bases.start import PRIOR_SCALE, is_start_noise
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.mixed_linear import through

# Standard deviation of A at the start. Not 0: then B would have no gradient.
START = 0.02


class LowRankMixture(MixtureHead):
    """K softmaxes that share one output embedding and most of their context.

    Args:
        embedding_size: E, for h = activation(Linear(hidden)); None takes the hidden state as h.
        rank: r, of each component's residual.
        prior_bias: whether each component has a bias in P.
        start_noise: start with one B for all components, and with A of this standard deviation that
            sums to zero over them. None draws all of them independently, A of 0.02.
        options: and sizes, as of `MixtureHead`.
    """

    title = "Low-rank MoS"
    default_components = 5

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int | None,
        *,
        rank: int = 32,
        prior_bias: bool = False,
        start_noise: float | None = None,
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        check_sizes(rank=rank)
        self.rank, self.start_noise, self.prior_bias = rank, start_noise, prior_bias
        D, K, E = hidden_size, num_components, self.embedding_size
        if embedding_size is not None:
            self.latent = self._linear(D, E)
        self.prior = self._empty_linear(D, K, bias=prior_bias)
        self.down = self._empty_linear(D, K * rank, bias=False)
        self.up = nn.Parameter(self.weight.new_empty(K, rank, E))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.up, std=START)
        if is_start_noise(self.start_noise):
            self.up.mul_(self.start_noise / START).sub_(self.up.mean(0))
            down = self.down.weight[: self.rank].repeat(self.num_components, 1)
            self.down.weight.copy_(down)
            self.prior.weight.mul_(PRIOR_SCALE)

    def mixture(self, hidden: Tensor) -> Mixture:
        self._check_hidden(hidden)
        common = hidden
        if self.latent is not None:
            common = self._activated(through(self.latent, hidden))  # (..., E)
        low = torch.tanh(through(self.down, hidden)).unflatten(-1, (self.num_components, self.rank))
        residual = torch.einsum("...kr,kre->...ke", low, self.up.to(low.dtype))  # (..., K, E)
        log_weight = log_weights(through(self.prior, hidden))  # (..., K)
        return Mixture(log_weight, self._dropped(common[..., None, :] + residual))
