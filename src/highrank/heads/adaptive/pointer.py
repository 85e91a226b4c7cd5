"""A trained pointer beside an adaptive softmax: the cheap softmax, and a copy of the recent past.

    p(token) = (1 - g_t) · p_adaptive(token) + g_t · Σ_{i: x_{i+1} = token} a_ti

The adaptive softmax is that of Grave, Joulin, Cissé, Grangier and Jégou (2017), arXiv 1609.04309,
attention and gate are those of `highrank.heads.pointer`. A tail is computed only where the target
is in it: its log-probability there joins the weight of the first softmax, so that the fused loss
adds the pointer's. T time, B streams, N tokens, R frequent tokens, m tails, L pairs in memory.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from highrank.heads.bases.adaptive import AdaptiveHead, AdaptiveOptions, Features
from highrank.heads.bases.extra import check_start_weight, log_gates, start_gate
from highrank.heads.bases.head import Head
from highrank.heads.pointer import Pointed, Pointing
from highrank.ops.loss import Reduction
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.precision import log_add


class PointingFeatures(NamedTuple):
    adaptive: Features
    gate: Tensor
    """(..., 1), the logit of g."""
    extra: Pointed

    @property
    def hidden(self) -> Tensor:
        return self.adaptive.hidden


class AdaptivePointer(Pointing, AdaptiveHead):
    """An adaptive softmax and a pointer to the tokens that followed the last L states.

    Args:
        hidden_size, vocab_size: D and V.
        embedding_size: E, for contexts activation(Linear(hidden)), one for each softmax.
        num_states: L, how many states the pointer remembers.
        key_size: S, the size of its keys and queries.
        pointer_weight: g, the pointer's weight at the start.
        options: frequent, cutoffs, div_value, token_counts, activation, dropout, bias, batch_first,
            device and dtype, as of `AdaptiveHead`.
    """

    title = "Adaptive pointer"

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int,
        *,
        num_states: int = 400,
        key_size: int = 64,
        pointer_weight: float = 0.1,
        **options: Unpack[AdaptiveOptions],
    ) -> None:
        super().__init__(
            hidden_size, vocab_size, 1, embedding_size, mix_first_tail=False, **options
        )
        check_start_weight(pointer_weight)
        self.pointer_weight = pointer_weight
        self.gate = self._linear(hidden_size, 1)
        self._make_pointer(num_states, key_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        start_gate(self.gate, self.pointer_weight)
        self._start_pointer()

    @property
    def rank_bound(self) -> int | None:
        return None

    # Features of the base are part of those here: `Any` stands for `PointingFeatures`.
    def features(self, hidden: Tensor, **past: Any) -> Any:
        extra = self.extra(hidden, **past)
        gate = self._possible(self.gate(hidden), extra)
        return PointingFeatures(super().features(hidden), gate, extra)

    def log_prob_from(self, features: Any) -> Tensor:
        log_gate = log_gates(features.gate)  # (..., 2)
        log_p = super().log_prob_from(features.adaptive) + log_gate[..., :1]  # (..., V)
        return log_add(log_p, self.extra_log_prob(features.extra, log_gate[..., 1:]))

    def _losses(
        self, features: Any, rank: Tensor, reduction: Reduction, chunk_bytes: int | None
    ) -> tuple[Tensor, Tensor]:
        (weight, bias), *tails = self._bands()
        _, target = self._places(rank)
        log_gate = log_gates(features.gate)  # (N, 2)
        log_weight = features.adaptive.log_weight + log_gate[:, :1]  # (N, 1)
        settings: dict[str, Any] = {"reduction": "none", "chunk_bytes": chunk_bytes}
        for inside, part, *_ in self._tail_losses(features.adaptive, rank, tails, settings):
            log_weight = log_weight.index_add(0, inside, -part[:, None])
        log_copied = self.extra_log_prob_of(features.extra, self.order[rank])  # (N, 1)
        token_loss, total, _ = mixture_loss(
            features.adaptive.context,
            log_weight,
            weight,
            target,
            bias=bias,
            extra=(log_gate[:, 1:], log_copied),
            reduction=reduction,
            chunk_bytes=chunk_bytes,
        )
        return token_loss, total

    def _is_impossible(self, ids: Tensor) -> Tensor:
        """None is: a token that the softmaxes forbid may still be copied."""
        return torch.zeros_like(ids, dtype=torch.bool)

    def _draw(self, features: Any, generator: torch.Generator | None) -> Tensor:
        return Head._draw(self, features, generator)
