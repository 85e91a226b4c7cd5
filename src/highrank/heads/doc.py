"""Direct output connection (DOC): Takase, Suzuki and Nagata (2018), arXiv 1808.10143.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P last),  h_k = tanh(L_k layer_k + c_k)

A mixture of softmaxes whose components read different layers of the network. As in the authors'
code one dropout mask serves all components, latent biases start at 0, and training adds the squared
coefficient of variation of the components' total weights, which keeps them in use.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads.base import check_sizes
from highrank.heads.mixture import ACTIVATIONS, Activation, Mixture, MixtureHead
from highrank.heads.start import check_start_noise, start_nearly_equal
from highrank.ops.dropout import sequence_dropout
from highrank.ops.precision import at_least_float32


class DirectOutputConnection(MixtureHead):
    """K softmaxes that share one output embedding, from several layers.

    Args:
        hidden_size: D, of all layers' hidden states side by side.
        vocab_size: V.
        num_components: K.
        embedding_size: E, the size of each context and of the output embedding.
        layers: that components read, 0 being the embeddings; the last one must be -1.
        lower_components: how many read each layer but the last, which has the others; None is a
            quarter of K for each.
        balance: λ of the term that balances the components' weights, 0 leaves it out.
        layer_sizes: of each layer's hidden states; None with one layer.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence for all components.
        bias: whether each token has a bias.
        start_noise: start with nearly equal contexts of each layer, as in `MixtureOfSoftmaxes`.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    layers: tuple[int, ...] = (-2, -1)

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        layers: tuple[int, ...] = (-2, -1),
        lower_components: tuple[int, ...] | None = None,
        balance: float = 1e-3,
        layer_sizes: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        start_noise: float | None = None,
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
        check_sizes(num_components=num_components)
        check_start_noise(start_noise)
        if not layers or layers[-1] != -1:
            raise ValueError(f"layers must end with -1, the last one, got {tuple(layers)}")
        if not 0 <= balance < float("inf"):
            raise ValueError(f"balance must be at least 0 and finite, got {balance}")
        self.layers, self.balance, self.num_components = tuple(layers), balance, num_components
        self.layer_sizes = _layer_sizes(layer_sizes, hidden_size, len(layers))
        lower = _lower_components(lower_components, num_components, len(layers) - 1)
        self.counts = counts = (*lower, num_components - sum(lower))
        self.start_noise = start_noise
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        *below, latent = (
            nn.Linear(size, count * embedding_size, **options)
            for size, count in zip(self.layer_sizes, counts, strict=True)
        )
        self.lower, self.latent = nn.ModuleList(below), latent
        self.prior = nn.Linear(self.layer_sizes[-1], num_components, bias=False, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the other mixtures, with latent biases of 0."""
        super().reset_parameters()
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        # The base's constructor comes here before there is a prior.
        if hasattr(self, "prior") and self.start_noise is not None:
            layers = [layer for layer in (*self.lower, self.latent) if isinstance(layer, nn.Linear)]
            latents = zip(layers, self.counts, strict=True)
            start_nearly_equal(latents, [self.prior.weight], self.start_noise)

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if K = 1; no bound is known otherwise."""
        return super().rank_bound if self.num_components == 1 else None

    def context_bound(self, hidden_bound: float | None) -> float | None:
        return 1.0 if self.activation == "tanh" else None

    def mixture(self, hidden: Tensor) -> Mixture:
        """Components of lower layers come first."""
        self._check_hidden(hidden)
        parts = hidden.split(self.layer_sizes, -1)
        latents = (
            layer(part) for layer, part in zip((*self.lower, self.latent), parts, strict=True)
        )
        context = ACTIVATIONS[self.activation](torch.cat(tuple(latents), -1))
        context = context.unflatten(-1, (self.num_components, -1))  # (..., K, E)
        return Mixture(self._log_weight(hidden), self._dropped(context))

    def penalty(self, hidden: Tensor, **past: Any) -> Tensor | float:
        """λ (K - 1) Var(S) / mean(S)², S being the components' weights, summed over time."""
        if not self.balance or self.num_components == 1:
            return 0.0
        time_dim = int(self.batch_first) if hidden.dim() > 2 else 0
        total = self._log_weight(hidden).exp().sum(time_dim)  # (B, K)
        return self.balance * (self.num_components - 1) * total.var() / total.mean().square()

    def _log_weight(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.prior(hidden[..., -self.layer_sizes[-1] :])  # (..., K)
        return logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))

    def _dropped(self, context: Tensor) -> Tensor:
        if not self.training:
            return context
        ones = context.new_ones(*context.shape[:-2], 1, self.embedding_size)
        return context * sequence_dropout(ones, self.dropout, context.dim() - 2, self.batch_first)


def _layer_sizes(sizes: Sequence[int] | None, hidden_size: int, num_layers: int) -> list[int]:
    sizes = [hidden_size] if sizes is None and num_layers == 1 else sizes
    if sizes is None or len(sizes) != num_layers or sum(sizes) != hidden_size:
        raise ValueError(
            f"layer_sizes must be {num_layers} numbers that add up to {hidden_size}, got {sizes}"
        )
    return list(sizes)


def _lower_components(
    counts: Sequence[int] | None, num_components: int, num_lower: int
) -> tuple[int, ...]:
    """How many components read each layer but the last."""
    if counts is None:
        counts = [max(1, num_components // 4)] * num_lower
    if len(counts) != num_lower or min(counts, default=1) < 1 or sum(counts) >= num_components:
        raise ValueError(
            f"lower_components must be {num_lower} numbers from 1 on that leave some of "
            f"{num_components} components, got {tuple(counts)}"
        )
    return tuple(counts)
