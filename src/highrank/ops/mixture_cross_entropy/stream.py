"""One pass over the tokens, a chunk at a time: their losses and, where wanted, the gradients.

The table of a chunk's logits becomes its softmaxes and then the slope of the loss, in place. What
multiplies a whole row stands on the thin side of each product, never in the R × V table. Where the
vocabulary is spread over processes, V is the number of its tokens that are here, and a reducer
combines the processes' numbers.
N tokens, K components, R = rows of a chunk (its tokens · K), M targets, E embedding size,
V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank.ops.logit_map import map_in_place
from highrank.ops.loss.chunks import new_table, tokens_per_chunk
from highrank.ops.loss.targets import index_or_none, weight_losses, weighted_sum
from highrank.ops.mixed_linear import product_with_columns, product_with_rows
from highrank.ops.mixture_cross_entropy.reducer import ONE_PROCESS, Reducer
from highrank.ops.mixture_cross_entropy.reference import Inputs
from highrank.ops.precision import at_least_float32
from highrank.ops.tracing import runs_triton


class Gradients(NamedTuple):
    """Gradients in the differentiable inputs; None where none is wanted."""

    context: Tensor | None
    log_weight: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    extra: Tensor | None


class Chunk(NamedTuple):
    """Losses, gradients and by-products of a chunk's tokens."""

    loss: Tensor  # (n,)
    slope: Tensor  # (R, V)
    factor: Tensor  # (n, K)
    d_log_weight: Tensor  # (n, K)
    d_extra: Tensor | None  # (n, J)
    by_products: dict[str, Tensor]


def stream(
    inputs: Inputs,
    upstream: Tensor,
    wanted: Sequence[bool],
    chunk_bytes: int | None,
    also: tuple[str, ...] = (),
    reducer: Reducer = ONE_PROCESS,
) -> tuple[Tensor, Gradients, dict[str, Tensor]]:
    """The loss of each token (N,), the wanted gradients of Σ upstream · loss, and by-products.

    Impossible targets (loss +inf) contribute no gradient. If the vocabulary is sharded, the
    gradients in contexts are those of the rows that are here: see `finish_gradients`.

    Args:
        wanted: whether there is to be a gradient in each of the differentiable inputs.
        also: by-products: "lse" (N, K), "prediction" (N,), "entropy" (N,).
    """
    context, weight = inputs.context, inputs.weight
    N, K, E = context.shape
    dtype = at_least_float32(context.dtype)
    token_loss = torch.empty(N, dtype=dtype, device=context.device)
    gradients = _allocate(inputs, wanted, dtype, reducer)
    size = chunk_size(inputs, chunk_bytes, reducer)
    buffer = new_table(context, min(N, size) * K, len(weight))  # (R, V)
    is_mapped, like = inputs.logit_map is not None, inputs.log_weight.to(dtype)
    slope = new_table(like, *buffer.shape) if is_mapped else None  # (R, V)
    kernels = row_kernels(inputs, also) if reducer.is_trivial else None
    is_plain = inputs.target.shape[1] == 1 and inputs.smoothing is None and not inputs.z_loss
    if is_plain and reducer.has_softmaxes(context):
        work_through = partial(plain_chunk, also=also, reducer=reducer)
    else:
        work_through = partial(general_chunk, also=also, reducer=reducer, kernels=kernels)
    found = _by_product_tables(inputs, also, dtype)
    for start in range(0, N, size):
        tokens = slice(start, start + size)
        part = _part(inputs, tokens, dtype)
        rows = context[tokens].reshape(-1, E)  # (R, E)
        chunk = work_through(rows, part, *_logits(rows, part, (buffer, slope), kernels))
        for name in also:
            found[name][tokens] = chunk.by_products[name]
        token_loss[tokens] = weight_losses(chunk.loss, part.token_weight)
        if any(wanted):
            scale = upstream[tokens]
            if part.token_weight is not None:
                scale = scale * part.token_weight
            scale = scale.masked_fill(chunk.loss == torch.inf, 0.0)[:, None]  # (n, 1)
            if gradients.extra is not None and chunk.d_extra is not None:
                gradients.extra[tokens] = chunk.d_extra * scale
            if gradients.log_weight is not None:
                gradients.log_weight[tokens] = chunk.d_log_weight * scale
            add_gradients(gradients, tokens, rows, weight, chunk.slope, chunk.factor * scale)
    return token_loss, gradients, found


def plain_chunk(
    rows: Tensor,
    part: Inputs,
    z: Tensor,
    map_slope: Tensor | None,
    also: tuple[str, ...],
    reducer: Reducer,
) -> Chunk:
    """One target a token: the softmaxes are the slope but for the target's place.

    Args:
        z: logits (R, V), overwritten.
        map_slope: φ′ of the logits, (R, V).
    """
    n, K = part.log_weight.shape
    index = part.target.repeat_interleave(K, 0)  # (R, 1)
    q, total, log_q, lse = reducer.softmaxes(z, index, rows, part, "lse" in also)
    loss, posterior = _mixed(part, log_q.view(n, K, 1))
    posterior = posterior.squeeze(-1)  # (n, K + J)
    by_products = _by_products(also, q, total, part.log_weight, lse, reducer)
    factor = posterior[:, :K]  # (n, K)
    d_log_weight = -factor
    if total is None:
        slope = reducer.scatter_add(q, index, torch.full_like(log_q[:, None], -1.0))
    else:
        factor, slope = factor / total.view(n, K), reducer.scatter_add(q, index, -total)
    return Chunk(
        loss,
        slope if map_slope is None else slope.mul_(map_slope),
        factor,
        d_log_weight,
        None if part.extra is None else -posterior[:, K:],
        by_products,
    )


def general_chunk(
    rows: Tensor,
    part: Inputs,
    z: Tensor,
    map_slope: Tensor | None,
    also: tuple[str, ...],
    reducer: Reducer,
    kernels: ModuleType | None = None,
) -> Chunk:
    """Any loss, and without a look at the numbers by the host.

    Arguments as `plain_chunk`; the kernels are what `row_kernels` returns for the loss.
    """
    log_weight = part.log_weight
    n, K = log_weight.shape
    index = part.target.repeat_interleave(K, 0)  # (R, M)
    if kernels is None:
        lse, target_logit = reducer.logsumexp(z, index)  # (R, 1), (R, M)
    else:
        lse, target_logit = kernels.row_statistics(z, index)
    loss, posterior = _mixed(part, (target_logit - lse).view(n, K, -1))
    d_extra = None if part.extra is None else -posterior[:, K:].sum(-1)  # (n, J)
    posterior = posterior[:, :K]
    coefficient = posterior.sum(-1)  # (n, K)
    d_log_weight = -coefficient
    component_lse = lse.view(n, K)
    if part.z_loss:
        penalty = part.z_loss * log_weight.exp() * component_lse  # (n, K)
        loss = loss + (penalty * component_lse).sum(-1)
        d_log_weight = d_log_weight + penalty * component_lse
        coefficient = coefficient + 2 * penalty
    factor, removed = torch.ones_like(log_weight), posterior.reshape(index.shape)
    if kernels is not None:
        slope = kernels.row_slope(z, lse, coefficient.reshape(-1, 1), index, removed, map_slope)
        by_products = _by_products(also, slope, None, log_weight, lse, reducer)
        return Chunk(loss, slope, factor, d_log_weight, d_extra, by_products)
    log_q = z.sub_(lse)  # (R, V)
    smoothed = None
    if part.smoothing is not None:
        smooth_loss, smoothed = _smoothed(log_q.unflatten(0, (n, K)), log_weight, part.smoothing)
        smooth_loss, total = reducer.sum(smooth_loss, smoothed.sum(-1))  # (n,), (n, K)
        loss = loss + smooth_loss
        coefficient, d_log_weight = coefficient + total, d_log_weight - total
    q = log_q.exp_()  # (R, V)
    by_products = _by_products(also, q, None, log_weight, lse, reducer)
    slope = q.mul_(coefficient.reshape(-1, 1))
    if smoothed is not None:
        slope.sub_(smoothed.view(slope.shape))
    slope = reducer.scatter_add(slope, index, -removed)
    if map_slope is not None:
        slope.mul_(map_slope)
    return Chunk(loss, slope, factor, d_log_weight, d_extra, by_products)


def row_kernels(inputs: Inputs, also: tuple[str, ...]) -> ModuleType | None:
    """The module of Triton kernels, on CUDA and for what they can do; None otherwise."""
    is_one_target = inputs.target.shape[1] == 1 and inputs.smoothing is None
    if not is_one_target or not set(also) <= {"lse"} or not runs_triton(inputs.context):
        return None
    from highrank.ops.mixture_cross_entropy import triton_rows

    return triton_rows


def _mixed(part: Inputs, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token (n,), and how much of it each term answers for (n, K + J, M).

    Args:
        log_q: log-probabilities of the targets by each component, (n, K, M).
    """
    joint = part.log_weight[..., None] + log_q  # (n, K, M)
    if part.extra is not None:
        joint = torch.cat((joint, part.extra[..., None]), 1)  # (n, K + J, M)
    log_p = joint.logsumexp(1, keepdim=True)  # (n, 1, M)
    posterior = (joint - log_p).exp_().masked_fill_(log_p == -torch.inf, 0.0)  # (n, K + J, M)
    if part.amount is not None:
        posterior = posterior * part.amount[:, None]
    return weighted_sum(-log_p.squeeze(1), part.amount), posterior


def _smoothed(log_q: Tensor, log_weight: Tensor, smoothing: Tensor) -> tuple[Tensor, Tensor]:
    """-Σ_v s_v log p_v of each token (n,), and s_v times the posterior of each component."""
    if log_q.shape[1] == 1:
        # One component answers for everything. Where it cannot, the loss is infinite.
        loss = weighted_sum(-log_q.squeeze(1), smoothing) - log_weight.squeeze(1) * smoothing.sum()
        return loss, smoothing.expand_as(log_q)
    joint = log_q + log_weight[..., None]  # (n, K, V)
    log_p = joint.logsumexp(1)  # (n, V)
    posterior = joint.sub_(log_p[:, None]).exp_().mul_(smoothing)  # (n, K, V)
    # A token that no component can predict has no posterior.
    posterior.masked_fill_((log_p == -torch.inf)[:, None], 0.0)
    return weighted_sum(-log_p, smoothing), posterior


def _by_product_tables(
    inputs: Inputs, also: tuple[str, ...], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Memory for what is asked for: see `stream`."""
    like = inputs.log_weight
    shapes = {"lse": like.shape, "prediction": like.shape[:1], "entropy": like.shape[:1]}
    dtypes = {"prediction": torch.long}
    return {name: like.new_empty(shapes[name], dtype=dtypes.get(name, dtype)) for name in also}


def _by_products(
    also: tuple[str, ...],
    q: Tensor,
    total: Tensor | None,
    log_weight: Tensor,
    lse: Tensor | None,
    reducer: Reducer,
) -> dict[str, Tensor]:
    """By-products of `stream` for a chunk whose softmaxes are q / total, (R, V) and (R, 1)."""
    if not also:
        return {}
    found = {}
    if "lse" in also:
        assert lse is not None
        found["lse"] = lse.view(log_weight.shape)
    if "prediction" in also or "entropy" in also:
        n, K = log_weight.shape
        weight = log_weight.exp()  # (n, K)
        if total is not None:
            weight = weight / total.view(n, K)
        p = torch.einsum("nk,nkv->nv", weight, q.unflatten(0, (n, K)))  # (n, V)
        if "prediction" in also:
            found["prediction"] = reducer.argmax(p)
        if "entropy" in also:
            found["entropy"] = reducer.entropy(p)
    return {name: found[name] for name in also}


def finish_gradients(
    inputs: Inputs, gradients: Gradients, reducer: Reducer = ONE_PROCESS
) -> tuple[Tensor | None, ...]:
    """The gradients of the whole vocabulary, in the precision of what they belong to."""
    if gradients.context is not None:
        reducer.sum_in_place(gradients.context)
    given: Sequence[Any] = inputs.differentiable
    pairs = zip(gradients, given, strict=True)
    return tuple(None if gradient is None else gradient.to(x.dtype) for gradient, x in pairs)


def chunk_size(inputs: Inputs, chunk_bytes: int | None, reducer: Reducer = ONE_PROCESS) -> int:
    """Tokens of a chunk; the same number in all processes that share a vocabulary."""
    # Smoothing keeps two more tables: the posteriors of all tokens, and what makes them.
    num_tables = 1 if inputs.smoothing is None else 3
    context, dtype = inputs.context, at_least_float32(inputs.context.dtype)
    row_bytes = reducer.most_rows(inputs.weight) * dtype.itemsize
    return tokens_per_chunk(num_tables * context.shape[1], row_bytes, chunk_bytes, context.device)


def _part(inputs: Inputs, tokens: slice, dtype: torch.dtype) -> Inputs:
    """The inputs of a chunk's tokens; the contexts are taken as rows."""
    return inputs._replace(
        log_weight=inputs.log_weight[tokens].to(dtype),
        extra=index_or_none(inputs.extra, tokens),
        target=inputs.target[tokens],
        amount=index_or_none(inputs.amount, tokens),
        token_weight=index_or_none(inputs.token_weight, tokens),
    )


def _logits(
    rows: Tensor,
    inputs: Inputs,
    tables: tuple[Tensor, Tensor | None],
    kernels: ModuleType | None,
) -> tuple[Tensor, Tensor | None]:
    """φ(W row + b) (R, V) and φ′, in the tables where no other precision is needed."""
    z, slope = tables[0][: len(rows)], tables[1]  # (R, V)
    product_with_rows(rows, inputs.weight, inputs.bias, z)
    # The kernels read half precision as it is.
    if kernels is None or inputs.logit_map is not None:
        z = z.to(at_least_float32(z.dtype))
    if slope is None or inputs.logit_map is None:
        return z, None
    map_in_place(inputs.logit_map, z, slope[: len(z)])
    return z, slope[: len(z)]


def _allocate(
    inputs: Inputs, wanted: Sequence[bool], dtype: torch.dtype, reducer: Reducer
) -> Gradients:
    pairs = zip(inputs.differentiable, wanted, strict=True)
    context, log_weight, weight, bias, extra = (x if want else None for x, want in pairs)
    # Sums over tokens or processes are kept in at least float32.
    of_context = inputs.context.dtype if reducer.is_trivial else dtype
    return Gradients(
        None if context is None else context.new_empty(context.shape, dtype=of_context),
        None if log_weight is None else log_weight.new_empty(log_weight.shape),
        None if weight is None else weight.new_zeros(weight.shape, dtype=dtype),
        None if bias is None else bias.new_zeros(bias.shape, dtype=dtype),
        None if extra is None else extra.new_empty(extra.shape),
    )


def add_gradients(
    gradients: Gradients,
    tokens: slice,
    rows: Tensor,
    weight: Tensor,
    slope: Tensor,
    factor: Tensor,
) -> None:
    """Add what one chunk contributes. The slope is (R, V), the factor upstream · r (n, K)."""
    if gradients.bias is not None:
        if gradients.bias.dtype == slope.dtype:
            gradients.bias.addmv_(slope.T, factor.flatten())
        else:
            gradients.bias.add_(slope.T @ factor.to(slope.dtype).flatten())
    slope = slope.to(rows.dtype)
    factor = factor.reshape(-1, 1)  # (R, 1)
    if gradients.context is not None:
        out = gradients.context[tokens].view(-1, rows.shape[1])  # (R, E)
        if out.dtype == rows.dtype:
            product_with_columns(slope, weight, out).mul_(factor.to(rows.dtype))
        else:
            product = product_with_columns(slope, weight, torch.empty_like(rows))
            torch.mul(product, factor, out=out)
    factor = factor.to(rows.dtype)
    if gradients.weight is not None:
        if gradients.weight.dtype == slope.dtype:
            # As an operator with `out`: flop counters do not know the one in place.
            torch.addmm(gradients.weight, slope.T, rows * factor, out=gradients.weight)
        else:
            gradients.weight.add_(slope.T @ (rows * factor))
