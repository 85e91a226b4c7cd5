"""Sparse mixture of softmaxes: only the m components with the largest weights are computed.

The gate of Shazeer et al. (2017), arXiv 1701.06538, on the mixture of softmaxes of Yang et al.
(2018), arXiv 1711.03953:

    p = Σ_{k in S} π_k · softmax(W h_k + b),  S = top-m of s = P hidden,  π = softmax over S of s

The loss costs m softmaxes. A component that is never chosen gets no gradient from it, so that in
training a term keeps the components in use: λ times the squared coefficient of variation of the
mean weights that all K would have, per (micro-)batch. D hidden size, K components, E embedding
size.
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from highrank.heads.bases.mixture import Mixture, PriorMixture, PriorOptions


class SparseMixtureOfSoftmaxes(PriorMixture):
    """K softmaxes, of which each token takes the m that fit its hidden state best.

    Args:
        num_active: m, how many softmaxes are computed for a token; all if K is less.
        balance: λ, the weight of the term that keeps all components in use; 0 leaves it out.
        options: and sizes, as of `PriorMixture`.
    """

    title = "Sparse MoS"
    default_components = 5

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        num_active: int = 2,
        balance: float = 0.01,
        **options: Unpack[PriorOptions],
    ) -> None:
        if num_active < 1:
            raise ValueError(f"num_active must be at least 1, got {num_active}")
        if not 0 <= balance < float("inf"):
            raise ValueError(f"balance must be at least 0 and finite, got {balance}")
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        self.num_active, self.balance = min(num_active, num_components), balance

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if m = 1, whichever component it is; else no bound is known."""
        return self.softmax_rank_bound if self.num_active == 1 else None

    def mixture(self, hidden: Tensor) -> Mixture:
        """All K contexts; components that are not chosen have log-weight -inf."""
        log_weight, context = super().mixture(hidden)
        kept, chosen = log_weight.topk(self.num_active, -1)  # (..., m)
        empty = torch.full_like(log_weight, -torch.inf)
        return Mixture(empty.scatter(-1, chosen, kept.log_softmax(-1)), context)

    def features(self, hidden: Tensor, **past: Any) -> Mixture:
        """The chosen components alone: those that are computed."""
        log_weight, context = self.mixture(hidden)
        kept, chosen = log_weight.topk(self.num_active, -1)  # (..., m)
        index = chosen[..., None].expand(*chosen.shape, self.embedding_size)
        return Mixture(kept, context.gather(-2, index))

    def penalty(self, hidden: Tensor, **past: Any) -> Tensor | float:
        return self.balance * self.imbalance(hidden) if self.balance and hidden.numel() else 0.0

    def imbalance(self, hidden: Tensor) -> Tensor:
        """Variance of the components' mean weights over their squared mean: 0 if all are equal."""
        weight = self.log_weight(hidden).exp()  # (..., K)
        mean = weight.view(-1, self.num_components).mean(0)  # (K,)
        return mean.var(correction=0) / mean.mean() ** 2
