"""A mixture of softmaxes that differ in the frequent tokens only: one context for all others.

    p(token) = Σ_k π_k exp(z_k[token]) / Z_k,  Z_k = Σ_frequent exp(z_k) + Σ_others exp(z_0)

z_k = W h_k + b for the frequent tokens, and z_0 = W h_0 + b for the others, in every component: the
K contexts of Yang et al. (2018), arXiv 1711.03953, where Mixtape (Yang et al., 2019, NeurIPS) has
its gates. As in an adaptive softmax, the others are one class, but its logit is
log Σ_others exp(z_0), and the others are computed for every token: K · R + V - R columns. Not
published.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from highrank.heads.adaptive.head import Features
from highrank.heads.adaptive.mos import AdaptiveMixtureOfSoftmaxes
from highrank.heads.mixture import Activation
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

# Of the vocabulary, as Mixtape's gated tokens.
FREQUENT_FRACTION = 0.1


class SharedTailMixtureOfSoftmaxes(AdaptiveMixtureOfSoftmaxes):
    """K contexts for the frequent tokens, one for all others, and a normaliser of each component.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K.
        embedding_size: E, the size of each context and of the output embedding.
        frequent: R, how many tokens have K contexts; auto takes a tenth of the vocabulary.
        start_noise: start with nearly equal contexts: all the same, that of the other tokens, too,
            plus noise that sums to zero, of this fraction of their standard deviation. None draws
            them independently.
        token_counts: how often the training split has each token; None takes the ids to be sorted
            by frequency.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence, independent per component.
        bias: whether each token has a bias.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    has_classes = False

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        frequent: int | Literal["auto"] = "auto",
        start_noise: float | None = None,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if frequent == "auto":
            frequent = max(1, int(FREQUENT_FRACTION * vocab_size))
        super().__init__(
            hidden_size,
            vocab_size,
            num_components,
            embedding_size,
            frequent=frequent,
            start_noise=start_noise,
            token_counts=token_counts,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.start_noise is None or not self.cutoffs:
            return
        first, other = self.latents
        assert isinstance(first, nn.Linear) and isinstance(other, nn.Linear)
        for name in ("weight", "bias"):
            contexts = first.get_parameter(name).unflatten(0, (self.num_components, -1))
            other.get_parameter(name).copy_(contexts.mean(0))

    @property
    def rank_bound(self) -> int | None:
        """A column for each frequent token; the others' context, the bias and one normaliser."""
        if self.num_components == 1:
            return self._context_span(range(len(self.sizes))) + 1
        return self.num_frequent + self._context_span([1]) + 1 if self.cutoffs else None

    def _first(
        self, features: Features, rows: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As if the others' class had an embedding: its logit is one more number of a context."""
        if not self.cutoffs:
            return super()._first(features, rows, biases)
        total = self._log_total(features, rows[1], biases[1])[..., None, None]  # (..., 1, 1)
        shape = (*features.context.shape[:-1], 1)
        context = torch.cat((features.context, total.to(features.context.dtype).expand(shape)), -1)
        own = nn.functional.pad(rows[0], (0, 1))  # (R, E + 1)
        others = own.new_zeros(1, own.shape[1])
        others[0, -1] = 1.0
        bias = None if biases[0] is None else nn.functional.pad(biases[0], (0, 1))
        return context, torch.cat((own, others)), bias

    def _log_total(self, features: Features, weight: Tensor, bias: Tensor | None) -> Tensor:
        """log Σ exp(z_0) (...) over the tokens that are not frequent, in the memory of a chunk."""
        log_weight, context = self._tail_mixture(1, features)  # (..., 1), (..., 1, E)
        # The loss of a token is this sum less the token's logit; any will do that is possible.
        token = torch.zeros(1, dtype=torch.long, device=context.device)
        if bias is not None:
            token = bias.argmax(0, keepdim=True)  # (1,)
        logit = context.squeeze(-2) @ weight.index_select(0, token).squeeze(0)  # (...)
        if bias is not None:
            logit = logit + bias.index_select(0, token).squeeze(0)
        target = token[0].expand(context.shape[:-2])
        loss = mixture_cross_entropy(
            context, log_weight, weight, target, bias=bias, reduction="none"
        )
        return loss + logit
