"""Mixture of Softmaxes (MoS): Yang, Dai, Salakhutdinov and Cohen (2018), arXiv 1711.03953.

    p = Σ_k π_k · softmax(W h_k + b),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

The sum stands inside the logarithm, so log p is no longer linear in anything of size E, and no
bound on its rank follows from E. P has no bias and L has one, as in the paper's code.
"""

from highrank.heads.bases.mixture import PriorMixture


class MixtureOfSoftmaxes(PriorMixture):
    """K softmaxes that share one output embedding, weighted by the hidden state.

    One component is a `Softmax` over its context. Args are those of `PriorMixture`.
    """

    title = "MoS"
