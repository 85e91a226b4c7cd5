"""Direct output connection (DOC): Takase, Suzuki and Nagata (2018), arXiv 1808.10143.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P last),  h_k = tanh(L_k layer_k + c_k)

A mixture of softmaxes whose components read different layers of the network. As in the authors'
code one dropout mask serves all components, latent biases start at 0, and training adds the squared
coefficient of variation of the components' total weights, which keeps them in use.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from highrank.heads.bases.embedding import ContextOptions, sizes_of_layers
from highrank.heads.bases.mixture import Mixture, MixtureHead, log_weights
from highrank.heads.bases.start import start_nearly_equal
from highrank.ops.dropout import sequence_dropout
from highrank.ops.mixed_linear import through


class DirectOutputConnection(MixtureHead):
    """K softmaxes that share one output embedding, from several layers.

    Args:
        hidden_size: D, of all layers' hidden states side by side.
        layers: that components read, 0 being the embeddings; the last one must be -1.
        lower_components: how many read each layer but the last, which has the others; None is a
            quarter of K for each.
        balance: λ, the weight of the term that balances the components' weights, 0 leaves it out.
        layer_sizes: the size of each layer's hidden states; None with one layer.
        start_noise: start with nearly equal contexts of each layer, as in `MixtureOfSoftmaxes`.
        dropout: on the contexts, one mask per sequence for all components.
        options: and sizes, as of `MixtureHead`.
    """

    title = "DOC"
    default_components = 5
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
        start_noise: float | None = None,
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        if not 0 <= balance < float("inf"):
            raise ValueError(f"balance must be at least 0 and finite, got {balance}")
        self.layers, self.balance, self.start_noise = tuple(layers), balance, start_noise
        self.layer_sizes = list(sizes_of_layers(layers, layer_sizes, hidden_size))
        lower = _lower_components(lower_components, num_components, len(layers) - 1)
        self.counts = (*lower, num_components - sum(lower))
        self._skip_draws()
        *below, self.latent = (
            self._linear(size, count * embedding_size)
            for size, count in zip(self.layer_sizes, self.counts, strict=True)
        )
        self.lower = nn.ModuleList(below)
        self.prior = self._linear(self.layer_sizes[-1], num_components, bias=False)
        self.reset_parameters()

    def _skip_draws(self) -> None:
        """Leave out random numbers that are not used, so that a seed has the weights it had."""
        D, E, V = self.hidden_size, self.embedding_size, self.vocab_size
        self.weight.new_empty(3 * (D + 1) * E + V * E).uniform_()

    def reset_parameters(self) -> None:
        """The start of the other mixtures, with latent biases of 0."""
        super().reset_parameters()
        layers = [layer for layer in self.modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            layer.reset_parameters()
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        latents = zip((*self.lower, self.latent), self.counts, strict=True)
        start_nearly_equal(latents, [self.prior.weight], self.start_noise)

    def context_bound(self, hidden_bound: float | None) -> float | None:
        return 1.0 if self.activation == "tanh" else None

    def mixture(self, hidden: Tensor) -> Mixture:
        """Components of lower layers come first."""
        self._check_hidden(hidden)
        parts = hidden.split(self.layer_sizes, -1)
        layers = zip((*self.lower, self.latent), parts, strict=True)
        context = self._activated(torch.cat([through(layer, part) for layer, part in layers], -1))
        context = context.unflatten(-1, (self.num_components, -1))  # (..., K, E)
        return Mixture(self._log_weight(hidden), self._dropped(context))

    def penalty(self, hidden: Tensor, **past: Any) -> Tensor | float:
        """λ (K - 1) Var(S) / mean(S)², S being the components' weights, summed over time."""
        if not self.balance or self.num_components == 1 or not hidden.numel():
            return 0.0
        hidden = hidden[None] if hidden.dim() == 1 else hidden
        time_dim = int(self.batch_first) if hidden.dim() > 2 else 0
        total = self._log_weight(hidden).exp().sum(time_dim)  # (B, K)
        return self.balance * (self.num_components - 1) * total.var() / total.mean().square()

    def _log_weight(self, hidden: Tensor) -> Tensor:
        return log_weights(through(self.prior, hidden[..., -self.layer_sizes[-1] :]))  # (..., K)

    def _dropped(self, context: Tensor) -> Tensor:
        if not self.training:
            return context
        ones = context.new_ones(*context.shape[:-2], 1, self.embedding_size)
        return context * sequence_dropout(ones, self.dropout, context.dim() - 2, self.batch_first)


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
