"""log p of every token under a mixture of softmaxes, in memory for N × V, not N × K × V.

    log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)

The forward pass streams over chunks of tokens and, in each, over components; the backward pass
recomputes. The vocabulary may be spread over processes that have the same tokens.
N tokens, K components, E embedding size, V vocabulary, n tokens of a chunk.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from highrank.ops.loss import check_mixture, check_precision
from highrank.ops.precision import (
    at_least_float32,
    in_autocast_dtype,
    log_add,
    log_sum,
    without_autocast,
)
from highrank.ops.sharding import (
    Rows,
    VocabularyShard,
    check_same_tokens,
    differentiable_sum,
    full_tensor,
    gather_columns,
    local_rows,
    row_argmax,
    row_max,
    shard_of,
    with_summed_gradient,
)
from highrank.ops.tracing import is_traced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# A chunk and the handful of tables of its size that are alive at once stay below 64 MiB.
CHUNK_BYTES = 8 * 2**20


def mixture_log_prob(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: "ProcessGroup | None" = None,
    shard: Rows | None = None,
) -> Tensor:
    """log p of each token (..., V), normalised, in at least float32.

    Args:
        context: (..., K, E).
        log_weight: (..., K), normalised.
        weight: (V, E).
        bias: (V,).
        group, shard: as of `mixture_cross_entropy`; every process gets all V.
    """
    shards = shard_of(weight, bias, group, shard)
    if shards is not None:
        columns, leading = _columns(context, log_weight, weight, bias, shards)
        return gather_columns(columns, shards).reshape(*leading, shards.vocab_size)
    check_mixture(context, log_weight, weight, bias)
    leading = context.shape[:-2]
    context = context.reshape(-1, *context.shape[-2:])  # (N, K, E)
    log_weight = log_weight.reshape(-1, log_weight.shape[-1])  # (N, K)
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_precision(context, weight, bias)
    with without_autocast(context.device):
        log_prob = _by_components if is_traced(context) else _LogProb.apply
        log_p: Tensor = log_prob(context, log_weight, weight, bias)  # (N, V)
    return log_p.reshape(*leading, len(weight))


@torch.no_grad()
def mixture_argmax(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: "ProcessGroup | None" = None,
    shard: Rows | None = None,
) -> Tensor:
    """The likeliest token (...). Of shards, no log-probabilities are sent but the largest ones.

    Arguments as `mixture_log_prob`.
    """
    shards = shard_of(weight, bias, group, shard)
    if shards is None:
        return mixture_log_prob(context, log_weight, weight, bias).argmax(-1)
    columns, leading = _columns(context, log_weight, weight, bias, shards)
    return row_argmax(columns, shards).reshape(leading)


def reference(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The definition, with N × K × V numbers in memory: what the tests compare with."""
    log_q = _full(F.linear(context, weight, bias)).log_softmax(-1)  # (..., K, V)
    return (log_weight[..., None] + log_q).logsumexp(-2)  # (..., V)


def _by_components(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """All tokens at once, a component at a time: for compilers, which fuse the rest."""
    found = None
    for k in range(context.shape[1]):
        log_q = _full(F.linear(context[:, k], weight, bias)).log_softmax(-1)  # (N, V)
        part = log_q + log_weight[:, k, None]
        found = part if found is None else log_add(found, part)
    assert found is not None
    return found


def _columns(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shards: VocabularyShard,
) -> tuple[Tensor, torch.Size]:
    """log p of the tokens of the vocabulary that are here (N, V), and the leading dimensions."""
    context, log_weight = full_tensor(context), full_tensor(log_weight)
    weight, bias = local_rows(weight), None if bias is None else local_rows(bias)
    check_mixture(context, log_weight, weight, bias, least_rows=0)
    leading = context.shape[:-2]
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_precision(context, weight, bias)
    context = with_summed_gradient(context.reshape(-1, *context.shape[-2:]), shards)  # (N, K, E)
    log_weight = log_weight.reshape(-1, log_weight.shape[-1])  # (N, K)
    log_weight = with_summed_gradient(log_weight, shards)
    N, K, _ = context.shape
    itemsize = at_least_float32(context.dtype).itemsize
    check_same_tokens(shards, context, None, 1)

    def columns_of(context: Tensor, log_weight: Tensor) -> Tensor:
        z = _full(F.linear(context, weight, bias))  # (n, K, V)
        top = row_max(z, shards)  # (n, K, 1)
        sums = differentiable_sum((z - top).exp().sum(-1, keepdim=True), shards)
        log_q = z - (top + sums.log())  # (n, K, V)
        return log_sum(log_weight[..., None] + log_q, 1)

    found = [context.new_empty(0, len(weight), dtype=at_least_float32(context.dtype))]
    with without_autocast(context.device):
        for tokens in token_slices(N, K * shards.most_rows, itemsize):
            parts = context[tokens], log_weight[tokens]
            # The backward pass recomputes each chunk.
            found.append(
                checkpoint(columns_of, *parts, use_reentrant=False, preserve_rng_state=False)
            )
    return torch.cat(found), leading


class _LogProb(Function):
    @staticmethod
    def forward(
        ctx: Any, context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        N, V = len(context), len(weight)
        log_p = context.new_empty(N, V, dtype=at_least_float32(context.dtype))
        for tokens in token_slices(N, V, log_p.dtype.itemsize):
            out = log_p[tokens].fill_(-torch.inf)  # (n, V)
            for k in range(context.shape[1]):
                log_q = _full(F.linear(context[tokens, k], weight, bias)).log_softmax(-1)  # (n, V)
                torch.logaddexp(out, log_q.add_(log_weight[tokens, k, None]), out=out)
        ctx.save_for_backward(context, log_weight, weight, bias, log_p)
        return log_p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(upstream.device):
            return _LogProb._gradients(ctx, upstream)

    @staticmethod
    def _gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        context, log_weight, weight, bias, log_p = ctx.saved_tensors
        wants_context, _, wants_weight, wants_bias = ctx.needs_input_grad
        d_context, d_log_weight = torch.empty_like(context), torch.empty_like(log_weight)
        d_weight = torch.zeros_like(weight, dtype=log_p.dtype) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=log_p.dtype) if wants_bias else None
        for tokens in token_slices(len(context), len(weight), log_p.dtype.itemsize):
            # A token that no component can predict has gradient 0, rather than NaN.
            log_total = log_p[tokens]  # (n, V)
            log_total = log_total.masked_fill(log_total == -torch.inf, torch.inf)
            for k in range(context.shape[1]):
                h = context[tokens, k]  # (n, E)
                log_q = _full(F.linear(h, weight, bias)).log_softmax(-1)  # (n, V)
                part = (log_q - log_total).add_(log_weight[tokens, k, None]).exp_()  # (n, V)
                part.mul_(upstream[tokens])
                d_log_weight[tokens, k] = total = part.sum(-1)  # (n,)
                slope = part.sub_(log_q.exp_().mul_(total[:, None]))  # (n, V)
                if d_bias is not None:
                    d_bias += slope.sum(0)
                slope = slope.to(h.dtype)
                if wants_context:
                    d_context[tokens, k] = slope @ weight
                if d_weight is not None and d_weight.dtype == slope.dtype:
                    d_weight.addmm_(slope.T, h)
                elif d_weight is not None:
                    d_weight += slope.T @ h
        return (
            d_context if wants_context else None,
            d_log_weight,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
        )


def token_slices(
    num_tokens: int, vocab_size: int, itemsize: int, chunk_bytes: int | None = None
) -> Iterator[slice]:
    """Chunks of tokens whose rows over the vocabulary take at most `CHUNK_BYTES`, if not others."""
    size = max(1, (chunk_bytes or CHUNK_BYTES) // (vocab_size * itemsize))
    return (slice(start, start + size) for start in range(0, num_tokens, size))


def _full(tensor: Tensor) -> Tensor:
    """The tensor in at least float32."""
    return tensor.to(at_least_float32(tensor.dtype))
