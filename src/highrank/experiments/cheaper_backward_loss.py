"""A mixture loss whose backward pass leaves rows out: the loss is exact, its gradients are not.

Two of the three matrix multiplies of the fused loss make gradients. A row, one component of one
token, enters them with its responsibility r as a factor, and Σ_k r_k = 1, so most rows matter
little. A *selection* replaces the responsibilities by weights, 0 where a row is left out; only the
others are multiplied. The gradient of log_weight, -r, costs nothing and stays exact.
N tokens, K components, R = rows of a chunk (its tokens · K), M of them kept, E embedding size,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from highrank.ops.mixture_cross_entropy.stream import (
    Gradients,
    Inputs,
    _add_gradients,
    _softmax_rows,
    tokens_per_chunk,
)

Selection = Callable[[Tensor], Tensor]
"""From responsibilities (n, K) to the weights of the rows (n, K), 0 where a row is left out."""


def filtered(responsibility: Tensor, threshold: float) -> Tensor:
    """r where r ≥ threshold, 0 elsewhere.

    Let the loss be Σ_t u_t · loss_t, and q the softmax of a row, h its context, y its target. The
    gradients miss what the dropped rows contribute, and nothing else:

        ‖Δ∂h‖ = u r ‖Wᵀ(q - e_y)‖ for a dropped row, 0 for a kept one
        ‖Δ∂W‖ ≤ Σ_dropped u r ‖q - e_y‖ ‖h‖ ≤ √2 Σ_dropped u r ‖h‖
             ≤ √2 · threshold · Σ_dropped u ‖h‖
        ‖Δ∂b‖ ≤ Σ_dropped u r ‖q - e_y‖ ≤ √2 Σ_dropped u r ≤ √2 · threshold · Σ_dropped u

    in the Frobenius norm, since ‖q - e_y‖² = Σ_{v≠y} q_v² + (1 - q_y)² ≤ 2 (1 - q_y)². A threshold
    of at most 1/K leaves each token its most responsible row.
    """
    return torch.where(responsibility >= threshold, responsibility, 0.0)


def keep_probability(responsibility: Tensor, num_kept: float) -> Tensor:
    """min(1, c · r) (n, K), float64, with the c of each token for which Σ_k of it is `num_kept`.

    1 where there are no more rows to keep than that; 0 where r is 0, at the cost of the sum.
    """
    r = responsibility.double()
    K = r.shape[-1]
    if num_kept >= K:
        return (r > 0).double()
    largest_first = r.sort(-1, descending=True).values  # (n, K)
    rest = largest_first.flip(-1).cumsum(-1).flip(-1)  # (n, K), Σ of r from here on
    # With the j largest rows kept for certain, the others share what is left of num_kept.
    left = num_kept - torch.arange(K, dtype=r.dtype, device=r.device)  # (K,)
    c = left / rest.clamp(min=torch.finfo(r.dtype).tiny)  # (n, K)
    first = (c * largest_first <= 1).int().argmax(-1, keepdim=True)  # (n, 1)
    return (c.gather(-1, first) * r).clamp(max=1.0)


def sampled(
    responsibility: Tensor, num_kept: float, generator: torch.Generator | None = None
) -> Tensor:
    """r / q for a row that is kept, with probability q = `keep_probability`: r on average.

    The draw is systematic: one uniform number a token, and a row is kept where Σ q passes an
    integer. So each token keeps `num_kept` rows, rather than that many on average, and its weights
    still sum to 1: kept rows with q < 1 all weigh 1 / c.
    """
    q = keep_probability(responsibility, num_kept)  # (n, K)
    start = torch.rand(len(q), 1, generator=generator, dtype=q.dtype, device=q.device)  # (n, 1)
    passed = torch.cat([start, start + q.cumsum(-1)], -1).floor().diff(dim=-1)  # (n, K)
    return torch.where(passed > 0, responsibility / q.to(responsibility.dtype), 0.0)


def selective_loss(
    inputs: Inputs, select: Selection, scale: float = 1.0, chunk_bytes: int | None = None
) -> Tensor:
    """scale · Σ loss of the tokens, exact, with the gradients of the selected rows.

    In float32 or float64, for one backward pass.
    """
    loss: Tensor = _SelectiveLoss.apply(*inputs, select, scale, chunk_bytes)
    return loss


class _SelectiveLoss(Function):
    @staticmethod
    def forward(
        ctx: Any,
        context: Tensor,
        log_weight: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        softcap: float | None,
        select: Selection,
        scale: float,
        chunk_bytes: int | None,
    ) -> Tensor:
        inputs = Inputs(context, log_weight, weight, bias, target, softcap)
        token_loss, ctx.gradients = selective_stream(inputs, select, scale, chunk_bytes)
        return scale * token_loss.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if upstream != 1:
            gradients = [None if g is None else g * upstream for g in gradients]
        return (*gradients, *[None] * 5)


def selective_stream(
    inputs: Inputs, select: Selection, scale: float, chunk_bytes: int | None
) -> tuple[Tensor, Gradients]:
    """As `stream` with all gradients wanted: the losses (N,), and the selected rows' gradients."""
    context, log_weight, weight, bias, target, softcap = inputs
    N, K, E = context.shape
    token_loss = context.new_empty(N)
    gradients = Gradients(
        torch.zeros_like(context),
        torch.empty_like(log_weight),
        torch.zeros_like(weight),
        None if bias is None else torch.zeros_like(bias),
    )
    size = tokens_per_chunk(K * len(weight) * context.itemsize, chunk_bytes)
    # A new table for each chunk's kept rows would cost several times the copy of them.
    num_rows = min(N, size) * K
    buffer, spare = (context.new_empty(num_rows, len(weight)) for _ in range(2))  # (R, V)
    for start in range(0, N, size):
        tokens = slice(start, start + size)
        rows = context[tokens].reshape(-1, E)  # (R, E)
        index = target[tokens].repeat_interleave(K)  # (R,)
        log_q, slope = _softmax_rows(rows, weight, bias, index, softcap, buffer)
        joint = log_weight[tokens] + log_q.view(-1, K)  # (n, K)
        log_p = joint.logsumexp(-1, keepdim=True)  # (n, 1)
        token_loss[tokens] = -log_p.squeeze(-1)
        responsibility = (joint - log_p).exp_().masked_fill_(log_p == -torch.inf, 0.0)
        _add_selected(gradients, tokens, rows, weight, slope, responsibility, select, scale, spare)
    return token_loss, gradients


def _add_selected(
    gradients: Gradients,
    tokens: slice,
    rows: Tensor,
    weight: Tensor,
    slope: Tensor,
    responsibility: Tensor,
    select: Selection,
    scale: float,
    spare: Tensor,
) -> None:
    assert gradients.context is not None and gradients.log_weight is not None
    gradients.log_weight[tokens] = -scale * responsibility
    factor = scale * select(responsibility).flatten()  # (R,)
    kept = factor.nonzero().squeeze(1)  # (M,)
    slope = torch.index_select(slope, 0, kept, out=spare[: len(kept)])  # (M, V)
    rows = rows[kept]  # (M, E)
    of_context = torch.empty_like(rows)  # (M, E)
    of_kept = Gradients(of_context, None, gradients.weight, gradients.bias)
    _add_gradients(of_kept, slice(None), rows, weight, slope, factor[kept])
    gradients.context[tokens].view(-1, rows.shape[1])[kept] = of_context
