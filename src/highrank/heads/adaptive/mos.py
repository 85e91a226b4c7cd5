"""Adaptive mixture of softmaxes: MoS for the frequent tokens, an adaptive softmax for the others.

    p(frequent token) = Σ_k π_k softmax(W₀ h_k + b₀)[token]
    p(token of tail i) = Σ_k π_k softmax(W₀ h_k + b₀)[class i] · softmax(W_i g_i + b_i)[token]

The K softmaxes of Yang et al. (2018), arXiv 1711.03953, are over the R frequent tokens and one
class per tail, as in Grave et al. (2017), arXiv 1609.04309; each tail has one softmax, computed
only where the target is in it. K · R columns then replace K · V: such a mixture may cost less than
one softmax over the vocabulary. No publication of the combination is known.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from highrank.heads.adaptive.frequency import affordable, cheapest, costs
from highrank.heads.adaptive.head import AdaptiveHead
from highrank.heads.adaptive.softmax import all_cutoffs
from highrank.heads.base import check_sizes
from highrank.heads.mixture import Activation
from highrank.heads.start import check_start_noise, start_nearly_equal
from highrank.ops.precision import at_least_float32


class AdaptiveMixtureOfSoftmaxes(AdaptiveHead):
    """K softmaxes over the frequent tokens, and one over each tail of rarer tokens.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K. One component is an `AdaptiveSoftmax`.
        embedding_size: E, the size of each context and of the output embedding.
        frequent: R, how many tokens the K softmaxes are over; auto takes as many as make the loss
            cost no more than one softmax over the vocabulary, by the counts of the training split.
        cutoffs: ranks at which further tails begin; without any, there is one tail.
        div_value: each tail has contexts and embeddings this much narrower than the band before it.
        mix_first_tail: the first tail is a mixture of K softmaxes, too, with the same weights.
        start_noise: start with nearly equal contexts: all the same, plus noise that sums to zero,
            of this fraction of their standard deviation. None draws them independently.
        token_counts: how often the training split has each token; None takes the ids to be sorted
            by frequency.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence, independent per component.
        bias: whether each token and each class has a bias.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        frequent: int | Literal["auto"] = "auto",
        cutoffs: tuple[int, ...] = (),
        div_value: float = 1.0,
        mix_first_tail: bool = False,
        start_noise: float | None = None,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(num_components=num_components)
        check_start_noise(start_noise)
        if frequent == "auto":
            first = num_components if mix_first_tail else 1
            cost = costs(token_counts, vocab_size, num_components, first / div_value)
            frequent = cheapest(cost) if num_components == 1 else affordable(cost)
        edges = all_cutoffs(frequent, cutoffs, vocab_size)
        super().__init__(
            hidden_size,
            vocab_size,
            components=_components(num_components, mix_first_tail, len(edges)),
            embedding_size=embedding_size,
            cutoffs=edges,
            div_value=div_value,
            token_counts=token_counts,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.start_noise = start_noise
        self.mix_first_tail = mix_first_tail and len(edges) > 0
        self.prior = nn.Linear(hidden_size, num_components, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.start_noise is None:
            return
        mixed = [
            (layer, K)
            for layer, K in zip(self.latents, self.components, strict=True)
            if K > 1 and isinstance(layer, nn.Linear)
        ]
        start_nearly_equal(mixed, [self.prior.weight], self.start_noise)

    @property
    def rank_bound(self) -> int | None:
        """Each token of a mixture has a column of its own, each tail a class and a normaliser.

        None where that is all tokens, as in a mixture of softmaxes.
        """
        bands = range(len(self.sizes))
        if self.num_components == 1:
            return self._context_span(bands) + len(self.sizes)
        simple = [band for band in bands if self.components[band] == 1]
        mixed = sum(self.sizes[band] for band in bands if self.components[band] > 1)
        return mixed + self._context_span(simple) + len(simple) if simple else None

    def log_weight(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.prior(hidden)  # (..., K)
        return logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))


def _components(num_components: int, mix_first_tail: bool, num_tails: int) -> tuple[int, ...]:
    """K of each band."""
    tails = [num_components if mix_first_tail else 1, *[1] * num_tails]
    return (num_components, *tails[:num_tails])
