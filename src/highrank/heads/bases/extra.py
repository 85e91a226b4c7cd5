"""Mixtures of softmaxes with further components that cost nothing per token of the vocabulary.

    p(token | hidden) = g_0 · Σ_k π_k softmax(W h_k + b)[token] + Σ_j g_j · q_j(token)
    g = softmax(0, G hidden + c)

The loss needs q_j of the target only, and the fused loss takes it as a further term. A head states
its q; π and h are those of a mixture of softmaxes, which is a softmax over tanh(Linear(hidden)) if
K = 1. K softmaxes, J further components, E embedding size, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import Mixture, MixtureHead, log_weights
from highrank.heads.bases.output import LossSettings, MeasuredOutput
from highrank.ops.loss import Target, check_target_shape
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.mixture_log_prob import mixture_log_prob
from highrank.ops.precision import log_add


class Extended(NamedTuple):
    mixture: Mixture
    """Weights and contexts of the softmaxes alone."""
    gate: Tensor
    """(..., J), the logits of g_1 … g_J; that of g_0 is 0."""
    extra: Any
    """The inputs of q: a pytree of tensors (..., anything)."""


class ExtendedMixture(Head):
    """Base of the heads with further components: their weights, the loss, all probabilities.

    A subclass writes `extra`, `extra_log_prob` and `extra_log_prob_of`.

    Args:
        softmaxes: the K softmaxes, their weights and contexts.
        num_extra: J.
        extra_weight: Σ_j g_j at the start.
    """

    def __init__(self, softmaxes: MixtureHead, num_extra: int, extra_weight: float) -> None:
        super().__init__(softmaxes.hidden_size, softmaxes.vocab_size)
        check_start_weight(extra_weight)
        self.softmaxes, self.extra_weight = softmaxes, extra_weight
        self.num_components = softmaxes.num_components
        self.embedding_size, self.batch_first = softmaxes.embedding_size, softmaxes.batch_first
        self.gate = self._linear(self.hidden_size, num_extra)

    def reset_parameters(self) -> None:
        """The softmaxes as they always start; gates that do not depend on the hidden state."""
        self.softmaxes.reset_parameters()
        start_gate(self.gate, self.extra_weight)

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias of each token in all softmaxes."""
        return self.softmaxes.bias

    def tie(self, weight: Tensor) -> None:
        self.softmaxes.tie(weight)

    def scale_embedding(self, factor: float) -> None:
        self.softmaxes.scale_embedding(factor)

    def start_at_unigram(self, token_counts: Sequence[int]) -> None:
        self.softmaxes.start_at_unigram(token_counts)

    def extra(self, hidden: Tensor, **past: Any) -> Any:
        """The inputs of the further components of each token."""
        raise NotImplementedError

    def extra_log_prob(self, extra: Any, log_gate: Tensor) -> Tensor:
        """log Σ_j g_j q_j of every token, (..., V), from log g (..., J)."""
        raise NotImplementedError

    def extra_log_prob_of(self, extra: Any, target: Tensor) -> Tensor:
        """log q_j of the targets (...), (..., J); anything for those outside 0 … V - 1."""
        raise NotImplementedError

    def features(self, hidden: Tensor, **past: Any) -> Extended:
        mixture = self.softmaxes.mixture(hidden)
        return Extended(mixture, self.gate(hidden), self.extra(hidden, **past))

    def log_gate(self, features: Extended) -> Tensor:
        """log g, (..., 1 + J), normalised: the weight of all softmaxes together comes first."""
        return log_gates(features.gate)

    def log_prob_from(self, features: Extended) -> Tensor:
        log_gate, (log_weight, context) = self.log_gate(features), features.mixture
        weight, bias = self.softmaxes.weight, self.softmaxes.bias
        log_p = mixture_log_prob(context, log_weight + log_gate[..., :1], weight, bias)  # (..., V)
        return log_add(log_p, self.extra_log_prob(features.extra, log_gate[..., 1:]))

    def _loss(self, features: Extended, target: Target, settings: LossSettings) -> MeasuredOutput:
        """The fused loss, or, where it needs more than the target's probability, the streamed."""
        options = settings.arguments()
        if isinstance(target, tuple) or options.get("label_smoothing") or options.get("shift"):
            return super()._loss(features, target, settings)
        log_gate, (log_weight, context) = self.log_gate(features), features.mixture
        check_target_shape(target, tuple(context.shape[:-2]))
        token_loss, loss, found = mixture_loss(
            context,
            log_weight + log_gate[..., :1],
            self.softmaxes.weight,
            target,
            bias=self.softmaxes.bias,
            extra=(log_gate[..., 1:], self.extra_log_prob_of(features.extra, target)),
            **options,
        )
        return MeasuredOutput(0.0 - token_loss, loss, found)


def log_gates(gate: Tensor) -> Tensor:
    """log g, (..., 1 + J), normalised, from the logits (..., J) of g_1 … g_J; that of g_0 is 0."""
    return log_weights(F.pad(gate, (1, 0)))


def check_start_weight(weight: float) -> None:
    if not 0 < weight < 1:
        raise ValueError(f"the start weight must be between 0 and 1, got {weight}")


def start_gate(gate: nn.Linear, weight: float) -> None:
    """Gates that do not depend on the hidden state, all J together of this weight."""
    nn.init.zeros_(gate.weight)
    nn.init.constant_(gate.bias, math.log(weight / gate.out_features / (1 - weight)))
