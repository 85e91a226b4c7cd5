"""A trained pointer beside an adaptive softmax: the cheap softmax, and a copy of the recent past.

    p(token) = (1 - g_t) · p_adaptive(token) + g_t · Σ_{i: x_{i+1} = token} a_ti

The adaptive softmax is that of Grave, Joulin, Cissé, Grangier and Jégou (2017), arXiv 1609.04309,
attention and gate are those of `highrank.heads.pointer`. A tail is computed only where the target
is in it: its log-probability there joins the weight of the first softmax, so that the fused loss
adds the pointer's. T time, B streams, N tokens, R frequent tokens, m tails, L pairs in memory.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from highrank.heads.adaptive.frequency import cheapest, costs
from highrank.heads.adaptive.head import AdaptiveHead, Features
from highrank.heads.adaptive.softmax import all_cutoffs
from highrank.heads.base import Head
from highrank.heads.extra import check_start_weight, log_gates, log_sum, start_gate
from highrank.heads.mixture import Activation
from highrank.heads.pointer import Pointed, Pointing
from highrank.ops.loss import Reduction
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.precision import at_least_float32


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
        hidden_size: D.
        vocab_size: V.
        embedding_size: E, for contexts activation(Linear(hidden)), one for each softmax.
        frequent: R, how many tokens are in the first softmax; auto takes the R with the least cost
            for the counts of the training split.
        cutoffs: ranks at which further tails begin; without any, there is one tail.
        div_value: each tail has contexts and embeddings this much narrower than the band before it.
        num_states: L, how many states the pointer remembers.
        key_size: S, the size of its keys and queries.
        pointer_weight: g, the pointer's weight at the start.
        token_counts: how often the training split has each token; None takes the ids to be sorted
            by frequency.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence.
        bias: whether each token and each class has a bias.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int,
        *,
        frequent: int | Literal["auto"] = "auto",
        cutoffs: tuple[int, ...] = (),
        div_value: float = 1.0,
        num_states: int = 400,
        key_size: int = 64,
        pointer_weight: float = 0.1,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_start_weight(pointer_weight)
        cost = costs(token_counts, vocab_size, 1, 1 / div_value)
        edges = all_cutoffs(cheapest(cost) if frequent == "auto" else frequent, cutoffs, vocab_size)
        super().__init__(
            hidden_size,
            vocab_size,
            components=(1,) * (len(edges) + 1),
            embedding_size=embedding_size,
            cutoffs=edges,
            div_value=div_value,
            token_counts=token_counts,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=False,
            device=device,
            dtype=dtype,
        )
        self.pointer_weight = pointer_weight
        self.gate = nn.Linear(hidden_size, 1, device=device, dtype=dtype)
        self._make_pointer(num_states, key_size, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        start_gate(self.gate, self.pointer_weight)
        self._start_pointer()

    @property
    def rank_bound(self) -> int | None:
        return None

    def log_weight(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(*hidden.shape[:-1], 1, dtype=at_least_float32(hidden.dtype))

    # Features of the base are part of those here: `Any` stands for `PointingFeatures`.
    def features(self, hidden: Tensor, **past: Any) -> Any:
        extra = self.extra(hidden, **past)
        gate = self._possible(self.gate(hidden), extra)
        return PointingFeatures(super().features(hidden), gate, extra)

    def log_prob_from(self, features: Any) -> Tensor:
        log_gate = log_gates(features.gate)  # (..., 2)
        log_p = super().log_prob_from(features.adaptive) + log_gate[..., :1]  # (..., V)
        return log_sum(log_p, self.extra_log_prob(features.extra, log_gate[..., 1:]))

    def _losses(
        self, features: Any, rank: Tensor, reduction: Reduction, chunk_bytes: int | None
    ) -> tuple[Tensor, Tensor]:
        bands = self._rows(), self._biases()
        context, weight, bias = self._first(features.adaptive, *bands)
        _, target = self._places(rank)
        log_gate = log_gates(features.gate)  # (N, 2)
        log_weight = features.adaptive.log_weight + log_gate[:, :1]  # (N, 1)
        settings: dict[str, Any] = {"reduction": "none", "chunk_bytes": chunk_bytes}
        for inside, part, *_ in self._tail_losses(features.adaptive, rank, bands, settings):
            log_weight = log_weight.index_add(0, inside, -part[:, None])
        log_copied = self.extra_log_prob_of(features.extra, self.order[rank])  # (N, 1)
        token_loss, total, _ = mixture_loss(
            context,
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
        """What the softmaxes forbid may still be copied: the loss itself finds out."""
        return torch.zeros_like(ids, dtype=torch.bool)

    def _draw(self, features: Any, generator: torch.Generator | None) -> Tensor:
        return Head._draw(self, features, generator)
