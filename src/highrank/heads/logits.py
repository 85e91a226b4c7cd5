"""Heads that state their logits: softmaxes that no single context per component makes.

    p(token | hidden) = Σ_k weight_k · softmax(logits_k)[token]

The loss streams chunks of logits and makes the gradients while they are alive. D hidden size,
K components, E embedding size, V vocabulary, n tokens of a chunk; `...` is any leading dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads.base import Head, check_sizes, flattened
from highrank.ops.dropout import sequence_dropout
from highrank.ops.loss import Reduction
from highrank.ops.loss.targets import Targets, reduce_summed_loss
from highrank.ops.precision import at_least_float32, log_sum
from highrank.ops.streamed_cross_entropy import Columns, Logits, logits_of, streamed_cross_entropy
from highrank.ops.tracing import in_torch_func, is_traced


class StreamedHead(Head):
    """Base of heads with logits of their own making.

    `features` returns log-weights (..., K) and then the tensors that the columns are made from.
    """

    def logits(self) -> Logits:
        """How they are made; nothing random."""
        raise NotImplementedError

    def places(self) -> Tensor | None:
        """The column of each token (V,); None if it is its id."""
        return None

    def log_prob_from(self, features: Sequence[Tensor]) -> Tensor:
        leading = features[0].shape[:-1]
        log_weight, *rest = flattened(tuple(features), len(leading))
        logits = logits_of(self.logits(), rest)  # (n, K, V)
        log_q = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        log_p, places = log_sum(log_weight[..., None] + log_q, -2), self.places()  # (n, V)
        if places is not None:
            log_p = log_p[:, places]
        return log_p.reshape(*leading, self.vocab_size)

    def _scored(
        self,
        features: Sequence[Tensor],
        targets: Targets,
        reduction: Reduction,
        chunk_bytes: int | None,
    ) -> tuple[Tensor, Tensor]:
        if not can_stream(features[0], targets, reduction):
            return super()._scored(features, targets, reduction, chunk_bytes)
        return streamed_losses(
            self.logits(), features, self.places(), targets, reduction, chunk_bytes
        )


class LogitHead(StreamedHead):
    """With an output embedding, a bias, and dropout on the contexts."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        embedding_size: int,
        dropout: float,
        bias: bool,
        batch_first: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        check_sizes(embedding_size=embedding_size)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.embedding_size, self.dropout, self.batch_first = embedding_size, dropout, batch_first
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(vocab_size, embedding_size, **options))
        self.bias = nn.Parameter(torch.empty(vocab_size, **options)) if bias else None

    def reset_parameters(self) -> None:
        """Embedding uniform in ±0.1, bias 0, linear layers as torch does."""
        nn.init.uniform_(self.weight, -0.1, 0.1)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def _dropped(self, context: Tensor) -> Tensor:
        """Contexts (..., K, E) with dropout, in training: one mask per sequence."""
        if not self.training:
            return context
        return sequence_dropout(context, self.dropout, context.dim() - 2, self.batch_first)

    def extra_repr(self) -> str:
        text = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}"
        text += f", embedding_size={self.embedding_size}, dropout={self.dropout}"
        return text + f", bias={self.bias is not None}"


def one_each(features: Sequence[Tensor], *_: Any) -> Columns:
    """A context of each block, from contexts (n, blocks, E)."""
    (context,) = features
    return Columns(context.unbind(1))


def can_stream(log_weight: Tensor, targets: Targets, reduction: Reduction) -> bool:
    """Whether gradients can be made in the forward pass: of one target a token, and untraced."""
    is_of_one = targets.target.shape[1] == 1 and targets.smoothing is None
    return is_of_one and reduction != "none" and not (is_traced(log_weight) or in_torch_func())


def streamed_losses(
    logits: Logits,
    features: Sequence[Tensor],
    places: Tensor | None,
    targets: Targets,
    reduction: Reduction,
    chunk_bytes: int | None,
) -> tuple[Tensor, Tensor]:
    """The loss of each token (N,) by mixed softmaxes, and the reduced loss.

    Args:
        features: log-weights (N, K), and what `logits` takes.
        places: the column of each token (V,); None if it is its id.
        reduction: "mean" or "sum".
    """
    log_weight, *rest = features
    target, scale = targets.target.squeeze(1), targets.token_weight  # (N,), (N,)
    if targets.amount is not None:
        amount = targets.amount.squeeze(1)
        scale = amount if scale is None else amount * scale
    column = target if places is None else places[target]
    found, total = streamed_cross_entropy(logits, log_weight, rest, column, scale, chunk_bytes)
    return found, reduce_summed_loss(total, found == torch.inf, targets.mass, reduction)
