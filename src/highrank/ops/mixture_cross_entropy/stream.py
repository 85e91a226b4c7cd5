"""One pass over the tokens, a chunk at a time: their losses and, where wanted, the gradients.

All K softmaxes of a chunk's tokens are computed together, so that the responsibility r of each
component is known at once, and with it the gradient of a row's logits: upstream · r · (q - e_y).
The factor upstream · r multiplies the thin side of each product, never the R × V table.
N tokens, K components, R = rows of a chunk (its tokens · K), E embedding size, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.mixture_cross_entropy.reference import Inputs
from highrank.ops.numerics import at_least_float32, new_table

# Within 10 % of the fastest for V = 10,000 … 131,072; less is slower at large V: docs/log.md.
CHUNK_BYTES = 96 * 2**20


class Gradients(NamedTuple):
    """Of context, log_weight, weight, bias and extra; None where none is wanted."""

    context: Tensor | None
    log_weight: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    extra: Tensor | None


class Wanted(NamedTuple):
    context: bool
    log_weight: bool
    weight: bool
    bias: bool
    extra: bool


NOTHING = Wanted(False, False, False, False, False)


def stream(
    inputs: Inputs, upstream: Tensor, wanted: Wanted, chunk_bytes: int | None
) -> tuple[Tensor, Gradients]:
    """The loss of each token (N,), and the wanted gradients of Σ upstream · loss.

    Impossible targets (loss +inf) contribute no gradient.
    """
    context, log_weight, weight = inputs[:3]
    N, K, E = context.shape
    dtype = at_least_float32(context.dtype)
    token_loss = torch.empty(N, dtype=dtype, device=context.device)
    gradients = _allocate(inputs, wanted, dtype)
    size = tokens_per_chunk(K * len(weight) * dtype.itemsize, chunk_bytes)
    buffer = new_table(context, min(N, size) * K, len(weight))  # (R, V)
    for start in range(0, N, size):
        tokens = slice(start, start + size)
        rows = context[tokens].reshape(-1, E)  # (R, E)
        index = inputs.target[tokens].long().repeat_interleave(K)  # (R,)
        log_q, slope = _softmax_rows(rows, inputs, index, buffer)
        joint = log_weight[tokens].to(dtype) + log_q.view(-1, K)  # (n, K)
        if inputs.extra is not None:
            joint = torch.cat((joint, inputs.extra[tokens]), -1)  # (n, K + J)
        log_p = joint.logsumexp(-1, keepdim=True)  # (n, 1)
        token_loss[tokens] = -log_p.squeeze(-1)
        if any(wanted):
            impossible = log_p == -torch.inf  # (n, 1)
            factor = (joint - log_p).exp_() * upstream[tokens, None]  # (n, K + J)
            factor.masked_fill_(impossible, 0.0)
            if gradients.extra is not None:
                gradients.extra[tokens] = -factor[:, K:]
            _add_gradients(gradients, tokens, rows, weight, slope, factor[:, :K])
    return token_loss, gradients


def in_dtypes_of(inputs: Inputs, gradients: Gradients) -> tuple[Tensor | None, ...]:
    """The gradients in the precision of what they belong to."""
    return tuple(
        gradient if gradient is None or x is None else gradient.to(x.dtype)
        for gradient, x in zip(gradients, inputs[:5], strict=True)
    )


def tokens_per_chunk(bytes_per_token: int, chunk_bytes: int | None) -> int:
    """At least one: a single token's K · V logits are the least that can be alive."""
    return max(1, (CHUNK_BYTES if chunk_bytes is None else chunk_bytes) // bytes_per_token)


def _allocate(inputs: Inputs, wanted: Wanted, dtype: torch.dtype) -> Gradients:
    # What is summed over tokens starts at zero and is kept in at least float32.
    context, log_weight, weight, bias, extra = inputs[:5]
    return Gradients(
        context.new_empty(context.shape) if wanted.context else None,
        log_weight.new_empty(log_weight.shape) if wanted.log_weight else None,
        weight.new_zeros(weight.shape, dtype=dtype) if wanted.weight else None,
        bias.new_zeros(bias.shape, dtype=dtype) if wanted.bias and bias is not None else None,
        extra.new_empty(extra.shape) if wanted.extra and extra is not None else None,
    )


def _softmax_rows(
    rows: Tensor, inputs: Inputs, index: Tensor, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    """log q[index] of each row (R,), and the slope of -log q[index] in the row's logits (R, V)."""
    z = buffer[: len(rows)]  # (R, V)
    if inputs.bias is None:
        torch.mm(rows, inputs.weight.T, out=z)
    else:
        torch.addmm(inputs.bias, rows, inputs.weight.T, out=z)
    z = z.to(at_least_float32(z.dtype))
    map_slope = None
    if inputs.logit_map is not None:
        z, map_slope = inputs.logit_map.with_slope(z)  # (R, V), (R, V)
    index = index[:, None]  # (R, 1)
    target_logit = z.gather(1, index)  # (R, 1)
    # In half precision a logit computed again may be rounded to another one.
    top_logit = z.amax(-1) if rows.dtype != z.dtype else None  # (R,)
    # In place where that is known to be safe: a second table costs a tenth of the whole step.
    q = torch.softmax(z, -1, out=z) if z.is_cpu else z.softmax(-1)  # (R, V)
    log_q = _log_probability(q, target_logit, top_logit, rows, inputs, index)
    slope = q.scatter_add_(1, index, torch.full_like(target_logit, -1.0))
    return log_q, slope if map_slope is None else slope.mul_(map_slope)


def _log_probability(
    q: Tensor,
    target_logit: Tensor,
    top_logit: Tensor | None,
    rows: Tensor,
    inputs: Inputs,
    index: Tensor,
) -> Tensor:
    """log q[index] (R,), also where q[index] is too small for the dtype.

    Args:
        top_logit: the largest of each row, (R,); computed again where it is needed if None.
    """
    target_q = q.gather(1, index).squeeze(1)  # (R,)
    log_q = target_q.log()
    # 1e-30 leaves float32 all its digits: the smallest normal number is 1e-38.
    small = (target_q < 1e-30).nonzero().squeeze(1)
    if len(small):
        # Relative to the likeliest token, whose logit is cheap to compute again.
        top_q, top = q[small].max(-1)  # (S,)
        if top_logit is not None:
            largest = top_logit[small]  # (S,)
        else:
            largest = (rows[small] * inputs.weight[top]).sum(-1)
            if inputs.bias is not None:
                largest += inputs.bias[top]
            if inputs.logit_map is not None:
                largest = inputs.logit_map(largest)
        log_q[small] = target_logit.squeeze(1)[small] - largest + top_q.log()
    return log_q


def _add_gradients(
    gradients: Gradients,
    tokens: slice,
    rows: Tensor,
    weight: Tensor,
    slope: Tensor,
    factor: Tensor,
) -> None:
    """Add what one chunk contributes. The slope is (R, V), the factor upstream · r (n, K)."""
    if gradients.log_weight is not None:
        gradients.log_weight[tokens] = -factor
    if gradients.bias is not None:
        gradients.bias.addmv_(slope.T, factor.flatten())
    slope = slope.to(rows.dtype)
    factor = factor.to(rows.dtype).reshape(-1, 1)  # (R, 1)
    if gradients.context is not None:
        out = gradients.context[tokens].view(-1, rows.shape[1])  # (R, E)
        torch.mm(slope, weight, out=out).mul_(factor)
    if gradients.weight is not None:
        if gradients.weight.dtype == slope.dtype:
            gradients.weight.addmm_(slope.T, rows * factor)
        else:
            gradients.weight.add_(slope.T @ (rows * factor))
