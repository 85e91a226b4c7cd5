"""log p of every token under a mixture of softmaxes, in memory for N × V, not N × K × V.

    log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)

The forward pass streams over chunks of tokens and, in each, over components; the backward pass
recomputes. The vocabulary may be spread over processes that have the same tokens.
N tokens, K components, E embedding size, V vocabulary, n tokens of a chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.loss import check_mixture, check_precision
from highrank.ops.loss.targets import index_or_none
from highrank.ops.mixed_linear import linear, product_with_columns
from highrank.ops.mixture_cross_entropy.reducer import ONE_PROCESS, Reducer, ShardReducer
from highrank.ops.precision import at_least_float32, in_autocast_dtype, log_add, without_autocast
from highrank.ops.sharding import (
    Rows,
    VocabularyShard,
    check_same_tokens,
    full_tensor,
    gather_columns,
    local_rows,
    row_argmax,
    shard_of,
)
from highrank.ops.tracing import needs_operators

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Memory of a chunk: more of a large vocabulary, as multiplies of a few rows take twice the time.
CHUNK_BYTES, MOST_BYTES, ENOUGH_ROWS = 8 * 2**20, 64 * 2**20, 64


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
    columns = _columns(context, log_weight, weight, bias, shards)
    if shards is not None:
        columns = gather_columns(columns, shards)
    return columns.reshape(*context.shape[:-2], columns.shape[1])


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
    columns = _columns(context, log_weight, weight, bias, shards)
    return row_argmax(columns, shards).reshape(context.shape[:-2])


def reference(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The definition, with N × K × V numbers in memory: what the tests compare with."""
    log_q = _full(linear(context, weight, bias)).log_softmax(-1)  # (..., K, V)
    return (log_weight[..., None] + log_q).logsumexp(-2)  # (..., V)


def _by_components(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """All tokens at once, a component at a time: for compilers, which fuse the rest, `torch.func`,
    forward mode and second derivatives.
    """
    found = None
    for k in range(context.shape[1]):
        log_q = _full(linear(context[:, k], weight, bias)).log_softmax(-1)  # (N, V)
        part = log_q + log_weight[:, k, None]
        found = part if found is None else log_add(found, part)
    assert found is not None
    return found


def _columns(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shards: VocabularyShard | None,
) -> Tensor:
    """log p of the tokens of the vocabulary that are here (N, V)."""
    if shards is not None:
        context, log_weight = full_tensor(context), full_tensor(log_weight)
        weight, bias = local_rows(weight), None if bias is None else local_rows(bias)
    check_mixture(context, log_weight, weight, bias, least_rows=1 if shards is None else 0)
    context = context.reshape(-1, *context.shape[-2:])  # (N, K, E)
    log_weight = log_weight.reshape(-1, log_weight.shape[-1])  # (N, K)
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_precision(context, weight, bias)
    reducer = ONE_PROCESS
    if shards is not None:
        check_same_tokens(shards, context, None, 1)
        reducer = ShardReducer(shards)
    with without_autocast(context.device):
        if shards is None and needs_operators(context):
            return _by_components(context, log_weight, weight, bias)
        log_p: Tensor = _LogProb.apply(context, log_weight, weight, bias, reducer)
    return log_p


class _LogProb(Function):
    @staticmethod
    def forward(
        ctx: Any,
        context: Tensor,
        log_weight: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        reducer: Reducer,
    ) -> Tensor:
        N, V = len(context), len(weight)
        log_p = context.new_empty(N, V, dtype=at_least_float32(context.dtype))
        for tokens in token_slices(N, reducer.most_rows(weight) * log_p.itemsize):
            out = log_p[tokens]  # (n, V)
            for k in range(context.shape[1]):
                z = _full(linear(context[tokens, k], weight, bias))  # (n, V)
                log_q, log_pi = reducer.log_softmax(z), log_weight[tokens, k, None]  # (n, V)
                if k == 0:
                    torch.add(log_q, log_pi, out=out)
                else:
                    torch.logaddexp(out, log_q.add_(log_pi), out=out)
        ctx.save_for_backward(context, log_weight, weight, bias, log_p)
        ctx.reducer = reducer
        return log_p

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(upstream.device):
            if torch.is_grad_enabled():
                if not ctx.reducer.is_trivial:
                    raise RuntimeError("Second derivatives of a sharded head are not available.")
                given, wanted = ctx.saved_tensors[:4], ctx.needs_input_grad[:4]
                return *differentiable_gradients(_by_components, given, wanted, upstream), None
            return *_LogProb._gradients(ctx, upstream, ctx.reducer.replay()), None

    @staticmethod
    def _gradients(ctx: Any, upstream: Tensor, reducer: Reducer) -> tuple[Tensor | None, ...]:
        context, log_weight, weight, bias, log_p = ctx.saved_tensors
        wants_context, _, wants_weight, wants_bias, _ = ctx.needs_input_grad
        d_context, d_log_weight = torch.empty_like(context), torch.empty_like(log_weight)
        d_weight = torch.zeros_like(weight, dtype=log_p.dtype) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=log_p.dtype) if wants_bias else None
        for tokens in token_slices(len(context), reducer.most_rows(weight) * log_p.itemsize):
            # A token that no component can predict has gradient 0, rather than NaN.
            log_total = log_p[tokens]  # (n, V)
            log_total = log_total.masked_fill(log_total == -torch.inf, torch.inf)
            for k in range(context.shape[1]):
                h = context[tokens, k]  # (n, E)
                log_q = reducer.log_softmax(_full(linear(h, weight, bias)))  # (n, V)
                part = (log_q - log_total).add_(log_weight[tokens, k, None]).exp_()  # (n, V)
                part.mul_(upstream[tokens])
                d_log_weight[tokens, k] = total = reducer.sum_in_place(part.sum(-1))  # (n,)
                slope = part.sub_(log_q.exp_().mul_(total[:, None]))  # (n, V)
                if d_bias is not None:
                    d_bias += slope.sum(0)
                slope = slope.to(h.dtype)
                if wants_context:
                    d_context[tokens, k] = product_with_columns(slope, weight, torch.empty_like(h))
                if d_weight is not None and d_weight.dtype == slope.dtype:
                    d_weight.addmm_(slope.T, h)
                elif d_weight is not None:
                    d_weight += slope.T @ h
        return (
            reducer.sum_in_place(d_context) if wants_context else None,
            d_log_weight,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
        )


def token_slices(
    num_tokens: int, row_bytes: int, chunk_bytes: int | None = None
) -> Iterator[slice]:
    """Chunks of tokens whose rows over the vocabulary take so much memory, if not chosen here."""
    enough = max(CHUNK_BYTES, min(ENOUGH_ROWS * row_bytes, MOST_BYTES))
    size = max(1, (chunk_bytes or enough) // row_bytes)
    return (slice(start, start + size) for start in range(0, num_tokens, size))


def in_chunks(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    row_bytes: int,
    chunk_bytes: int | None,
) -> Tensor:
    """function(*tensors) (N,), a chunk of tokens at a time; the backward pass recomputes each.

    Args:
        function: makes (n,) from the rows of n tokens, with some tables (n, V) by the way.
        tensors: (N, …).
    """
    assert tensors[0] is not None
    # torch.func knows no checkpoints.
    if needs_operators(tensors[0]):
        return function(*tensors)
    found = []
    # Also of no tokens: every parameter then has a gradient.
    for rows in token_slices(max(1, len(tensors[0])), row_bytes, chunk_bytes):
        parts = [index_or_none(tensor, rows) for tensor in tensors]
        found.append(checkpoint(function, *parts, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(found)


def _full(tensor: Tensor) -> Tensor:
    """The tensor in at least float32."""
    return tensor.to(at_least_float32(tensor.dtype))
