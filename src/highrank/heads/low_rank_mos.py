"""Mixture of softmaxes whose contexts differ by a residual of low rank.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P hidden),  h_k = h + A_k tanh(B_k hidden)

h is the hidden state itself or tanh(L hidden + c). Each component has r (D + E) numbers of its own
instead of D · E. It is the form that lets a trained softmax become a mixture: with A = 0 all
components are that softmax. The low rank adds to the state and must not replace it: contexts of low
rank alone lost more than a third of a bit per byte in public trials (docs/heads.md).
"""

from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads.base import check_sizes
from highrank.heads.mixture import ACTIVATIONS, Activation, Mixture, MixtureHead
from highrank.heads.start import PRIOR_SCALE, check_start_noise
from highrank.ops.precision import at_least_float32

# Standard deviation of A at the start. Not 0: then B would have no gradient.
START = 0.02


class LowRankMixture(MixtureHead):
    """K softmaxes that share one output embedding and most of their context.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K.
        embedding_size: E, for h = activation(Linear(hidden)); None takes the hidden state as h.
        rank: r, of each component's residual.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence, independent per component.
        bias: whether each token has a bias.
        start_noise: start with one B for all components, and with A of this standard deviation that
            sums to zero over them. None draws all of them independently, A of 0.02.
        prior_bias: whether each component has a bias in P.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int | None,
        *,
        rank: int = 32,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        start_noise: float | None = None,
        prior_bias: bool = False,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components=1,
            embedding_size=embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        check_sizes(num_components=num_components, rank=rank)
        check_start_noise(start_noise)
        self.rank, self.start_noise, self.prior_bias = rank, start_noise, prior_bias
        D, K, r = hidden_size, num_components, rank
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_components = K
        self.prior = nn.Linear(D, K, bias=prior_bias, **options)
        self.down = nn.Linear(D, K * r, bias=False, **options)
        self.up = nn.Parameter(torch.empty(K, r, self.embedding_size, **options))
        self._start()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The base's constructor comes here before there are residuals.
        if hasattr(self, "up"):
            self._start()

    @torch.no_grad()
    def _start(self) -> None:
        nn.init.normal_(self.up, std=START)
        if self.start_noise is not None:
            self.up.mul_(self.start_noise / START).sub_(self.up.mean(0))
            down = self.down.weight[: self.rank].repeat(self.num_components, 1)
            self.down.weight.copy_(down)
            self.prior.weight.mul_(PRIOR_SCALE)

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if K = 1; no bound is known otherwise."""
        return super().rank_bound if self.num_components == 1 else None

    def mixture(self, hidden: Tensor) -> Mixture:
        self._check_hidden(hidden)
        common = hidden
        if self.latent is not None:
            common = ACTIVATIONS[self.activation](self.latent(hidden))  # (..., E)
        low = torch.tanh(self.down(hidden)).unflatten(-1, (self.num_components, self.rank))
        residual = torch.einsum("...kr,kre->...ke", low, self.up)  # (..., K, E)
        logits = self.prior(hidden)  # (..., K)
        log_weight = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        return Mixture(log_weight, self._dropped(common[..., None, :] + residual))
