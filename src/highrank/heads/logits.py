"""Heads that state their logits: softmaxes that no single context per component makes.

    p(token | hidden) = Σ_k weight_k · softmax(logits_k)[token]

The loss streams chunks of logits and makes the gradients while they are alive. D hidden size,
K components, E embedding size, V vocabulary, n tokens of a chunk; `...` is any leading dimensions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from highrank.heads.base import Head, MeasuredOutput, check_sizes, flattened
from highrank.ops.dropout import sequence_dropout
from highrank.ops.mixture_cross_entropy.arguments import (
    check_reduction,
    check_target_shape,
    check_targets,
)
from highrank.ops.mixture_cross_entropy.options import ByProduct, LossOptions
from highrank.ops.mixture_cross_entropy.targets import Reduction, Target
from highrank.ops.numerics import at_least_float32
from highrank.ops.streamed_cross_entropy import LogitsOf, streamed_cross_entropy
from highrank.ops.tracing import is_fake


class LogitHead(Head):
    """Base of heads with an output embedding and logits of their own making.

    `features` returns log-weights (..., K) and then the tensors that `logits_from` takes.
    """

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

    def token_order(self) -> Tensor:
        """The tokens (V,) in the order of the logits' columns."""
        return torch.arange(self.vocab_size, device=self.weight.device)

    def shared(self) -> Sequence[Tensor]:
        """What the logits of all tokens are made with, such as the output embedding."""
        raise NotImplementedError

    def logits_from(self, features: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """(n, K, V), columns in `token_order`, of features (n, …); nothing random."""
        raise NotImplementedError

    def log_prob_from(self, features: Sequence[Tensor]) -> Tensor:
        leading = features[0].shape[:-1]
        log_weight, *rest = flattened(tuple(features), len(leading))
        logits = self.logits_from(rest, self.shared())  # (n, K, V)
        log_q = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        log_p = (log_weight[..., None] + log_q).logsumexp(-2)  # (n, V)
        found: Tensor = log_p[:, self._columns()]
        return found.reshape(*leading, self.vocab_size)

    def _loss(
        self,
        features: Sequence[Tensor],
        target: Target,
        reduction: Reduction,
        ignore_index: int,
        also: Sequence[ByProduct],
        options: LossOptions,
    ) -> MeasuredOutput:
        if also or options or not can_stream(target, reduction):
            return super()._loss(features, target, reduction, ignore_index, also, options)
        logits = Logits(self.logits_from, self.shared(), self._columns())
        return streamed_output(logits, features, target, reduction, ignore_index)

    def _columns(self) -> Tensor:
        """The column of each token (V,)."""
        return _inverse(self.token_order())

    def _ordered(self, sizes: Sequence[int]) -> tuple[Tensor, Sequence[Tensor]]:
        """The bias and the output embedding in `token_order`, the latter in blocks of these sizes.

        Zeros if there is no bias.
        """
        order = self.token_order()
        weights = _Permuted.apply(self.weight, *order.split(list(sizes)))
        if self.bias is None:
            return self.weight.new_zeros(self.vocab_size), weights
        return _Permuted.apply(self.bias, order)[0], weights

    def _dropped(self, context: Tensor) -> Tensor:
        """Contexts (..., K, E) with dropout, in training: one mask per sequence."""
        if not self.training:
            return context
        return sequence_dropout(context, self.dropout, context.dim() - 2, self.batch_first)

    def extra_repr(self) -> str:
        text = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}"
        text += f", embedding_size={self.embedding_size}, dropout={self.dropout}"
        return text + f", bias={self.bias is not None}"


class Logits(NamedTuple):
    """How logits are made: for the streamed loss."""

    logits_from: LogitsOf
    shared: Sequence[Tensor]
    columns: Tensor
    """The column of each token (V,)."""


def can_stream(target: Target, reduction: Reduction) -> TypeGuard[Tensor]:
    """Whether gradients can be made in the forward pass, which transforms cannot see through."""
    if reduction == "none" or torch.compiler.is_compiling() or not isinstance(target, Tensor):
        return False
    return not (is_fake(target) or torch._C._are_functorch_transforms_active())


def streamed_output(
    logits: Logits,
    features: Sequence[Tensor],
    target: Tensor,
    reduction: Reduction,
    ignore_index: int,
) -> MeasuredOutput:
    """The loss of mixed softmaxes.

    Args:
        features: log-weights (..., K), and what `logits.logits_from` takes.
        reduction: "mean" or "sum".
    """
    check_reduction(reduction)
    check_target_shape(target, tuple(features[0].shape[:-1]))
    ids, V = target.reshape(-1).long(), len(logits.columns)  # (N,)
    kept = (ids != ignore_index).nonzero().squeeze(1)
    check_targets(ids[kept], V)
    log_weight, *rest = (leaf[kept] for leaf in flattened(tuple(features), target.dim()))
    kept_loss, loss = streamed_cross_entropy(
        logits.logits_from, log_weight, rest, logits.shared, logits.columns[ids[kept]], V
    )
    is_impossible = kept_loss == torch.inf
    if reduction == "mean":
        # As F.cross_entropy, NaN without any target.
        loss = loss / (~is_impossible).sum().clamp(min=min(1, len(kept)))
    loss = loss + torch.zeros_like(loss).masked_fill(is_impossible.any(), torch.inf)
    token_loss = kept_loss.new_zeros(len(ids)).index_copy(0, kept, kept_loss)
    return MeasuredOutput(0.0 - token_loss.reshape(target.shape), loss, {})


class _Permuted(Function):
    """Blocks of rows; the gradient is written back to its place, not summed over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *orders: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*orders)
        ctx.shape = x.shape
        return tuple(x[order] for order in orders)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        orders = ctx.saved_tensors
        whole = upstreams[0].new_empty(ctx.shape)
        for order, upstream in zip(orders, upstreams, strict=True):
            whole[order] = upstream
        return whole, *[None] * len(orders)


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
