"""Mixture of Softmaxes (MoS): Yang, Dai, Salakhutdinov and Cohen (2018), arXiv 1711.03953.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

The sum stands inside the logarithm, so log p is no longer linear in anything of size E, and no
bound on its rank follows from E. P has no bias and L has one, as in the paper's code.
"""

from typing import Unpack

from highrank.heads.bases.mixture import PriorMixture, PriorOptions


class MixtureOfSoftmaxes(PriorMixture):
    """K softmaxes that share one output embedding, weighted by the hidden state.

    Args:
        hidden_size, vocab_size: D and V.
        num_components: K. One component is a `Softmax` over its context.
        embedding_size: E, the size of each context and of the output embedding.
        options: activation, dropout, bias, start_noise, batch_first, device and dtype, as of
            `PriorMixture`.
    """

    title = "MoS"

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        **options: Unpack[PriorOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        self.reset_parameters()
