"""Heads that state their logits: softmaxes that no single context per component makes.

    p(token | hidden) = Σ_k weight_k · softmax(logits_k)[token]

The loss streams chunks of logits and makes the gradients while they are alive. D hidden size,
K components, E embedding size, V vocabulary, n tokens of a chunk; `...` is any leading dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from highrank.heads.bases.embedding import EmbeddingHead
from highrank.heads.bases.head import Head, flattened
from highrank.heads.bases.output import LossSettings
from highrank.ops.loss.targets import Targets, reduce_summed_loss
from highrank.ops.precision import at_least_float32, log_sum
from highrank.ops.streamed_cross_entropy import Columns, Logits, logits_of, streamed_cross_entropy
from highrank.ops.tracing import needs_operators


class StreamedLoss(Head):
    """Base of heads whose loss is computed in chunks of `logits`, with its gradients.

    `features` returns log-weights (..., K) and then the tensors that the columns are made from.
    """

    def logits(self) -> Logits:
        """How the logits are made; nothing random."""
        raise NotImplementedError

    def places(self) -> Tensor | None:
        """The column of each token (V,); None if it is its id."""
        return None

    def _flat_loss(
        self, features: Any, targets: Targets, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        log_weight, *rest = features
        reduction, beside = settings.reduction, settings.beside
        if not targets.has_ids_only or reduction == "none" or needs_operators(log_weight):
            return super()._flat_loss(features, targets, settings)
        target, places, extra = targets.target.squeeze(1), self.places(), None
        if beside is not None:
            log_weight = log_weight + beside.log_gate[:, :1]
            extra = beside.log_gate[:, 1:] + beside.log_q  # (N, J)
        chunk_bytes = settings.options.get("chunk_bytes")
        column = target if places is None else places[target]
        token_loss, total = streamed_cross_entropy(
            self.logits(), log_weight, rest, column, targets.scale, chunk_bytes, extra
        )
        return token_loss, reduce_summed_loss(
            total, token_loss == torch.inf, targets.mass, reduction
        )


class LogitHead(StreamedLoss, EmbeddingHead):
    """Base of heads with logits of their own making from an output embedding and contexts."""

    def log_prob_from(self, features: Sequence[Tensor]) -> Tensor:
        leading = features[0].shape[:-1]
        log_weight, *rest = flattened(tuple(features), len(leading))
        logits = logits_of(self.logits(), rest)  # (n, K, V)
        log_q = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        log_p, places = log_sum(log_weight[..., None] + log_q, -2), self.places()  # (n, V)
        if places is not None:
            log_p = log_p[:, places]
        return log_p.reshape(*leading, self.vocab_size)


def one_each(features: Sequence[Tensor], *_: Any) -> Columns:
    """A context of each block, from contexts (n, blocks, E)."""
    (context,) = features
    return Columns(context.unbind(1))
