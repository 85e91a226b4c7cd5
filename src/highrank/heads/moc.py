"""Mixture of Contexts (MoC): the control of Yang et al. (2018), arXiv 1711.03953.

    p = softmax(W Σ_k π_k h_k + b),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

The same parameters as a mixture of softmaxes, mixed before the softmax: one context of size E
remains, so the rank of log p is bounded as for one softmax.
"""

import torch
from torch import Tensor

from highrank.heads.bases.mixture import Mixture, PriorMixture


class MixtureOfContexts(PriorMixture):
    """One softmax over a weighted sum of K contexts. Args are those of `PriorMixture`."""

    title = "MoC"
    default_components = 5

    @property
    def rank_bound(self) -> int | None:
        return self.softmax_rank_bound

    def context_bound(self, hidden_bound: float | None) -> float | None:
        # A mean of contexts has their bound.
        return super().context_bound(hidden_bound)

    def softmaxes(self, hidden: Tensor) -> Mixture:
        log_weight, context = self.mixture(hidden)
        fraction = log_weight.exp().to(context.dtype)  # (..., K)
        mixed = (fraction[..., None] * context).sum(-2, keepdim=True)  # (..., 1, E)
        return Mixture(torch.zeros_like(log_weight[..., :1]), mixed)
