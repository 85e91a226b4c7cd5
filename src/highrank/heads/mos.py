"""Mixture of Softmaxes (MoS): Yang, Dai, Salakhutdinov and Cohen (2018), arXiv 1711.03953.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

The sum stands inside the logarithm, so log p is no longer linear in anything of size E, and no
bound on its rank follows from E. P has no bias and L has one, as in the paper's code.
"""

from highrank.heads.bases.mixture import PriorMixture


class MixtureOfSoftmaxes(PriorMixture):
    """K softmaxes that share one output embedding, weighted by the hidden state.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K. One component is a `Softmax` over its context.
        embedding_size: E, the size of each context and of the output embedding.
        activation: "tanh" (the paper) or "identity".
        dropout: on the contexts, one mask per sequence, independent per component.
        bias: whether each token has a bias.
        start_noise: start with nearly equal contexts: all the same, plus noise that sums to zero,
            of this fraction of their standard deviation. None (the paper) draws them independently.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if K = 1; no bound is known otherwise."""
        return super().rank_bound if self.num_components == 1 else None
