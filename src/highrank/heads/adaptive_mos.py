"""Adaptive mixture of softmaxes: MoS for the frequent tokens, an adaptive softmax for the others.

    p(frequent token) = Σ_k π_k softmax(W₀ h_k + b₀)[token]
    p(token of tail i) = Σ_k π_k softmax(W₀ h_k + b₀)[class i] · softmax(W_i g_i + b_i)[token]

The K softmaxes of Yang et al. (2018), arXiv 1711.03953, are over the R frequent tokens and one
class per tail, as in Grave et al. (2017), arXiv 1609.04309; each tail has one softmax, computed
only where the target is in it. K · R columns then replace K · V: such a mixture may cost less than
one softmax over the vocabulary. No publication of the combination is known.
"""

from typing import Unpack

from torch import Tensor, nn

from highrank.heads.bases.adaptive import AdaptiveHead, AdaptiveOptions
from highrank.heads.bases.mixture import log_weights
from highrank.heads.bases.start import start_nearly_equal


class AdaptiveMixtureOfSoftmaxes(AdaptiveHead):
    """K softmaxes over the frequent tokens, and one over each tail of rarer tokens.

    Args:
        num_components: K. One component is an `AdaptiveSoftmax`.
        mix_first_tail: the first tail is a mixture of K softmaxes, too, with the same weights.
        start_noise: start with nearly equal contexts, as in `MixtureOfSoftmaxes`.
        options: and sizes, as of `AdaptiveHead`.
    """

    title = "Adaptive MoS"
    default_components = 8

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        mix_first_tail: bool = False,
        start_noise: float | None = None,
        **options: Unpack[AdaptiveOptions],
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components,
            embedding_size,
            mix_first_tail=mix_first_tail,
            **options,
        )
        self.start_noise = start_noise
        self.prior = self._linear(hidden_size, num_components, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        layers = zip(self.latents, self.components, strict=True)
        mixed = [(layer, K) for layer, K in layers if K > 1 and isinstance(layer, nn.Linear)]
        start_nearly_equal(mixed, [self.prior.weight], self.start_noise)

    def log_weight(self, hidden: Tensor) -> Tensor:
        return log_weights(self.prior(hidden))
