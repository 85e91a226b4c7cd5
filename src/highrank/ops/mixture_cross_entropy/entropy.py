"""The entropy of a mixture with its gradient: a pass has the value, the backward pass recomputes.

    -Σ_v p(v) log p(v),   p(v) = Σ_k exp(log_weight[k]) · softmax(φ(W context[k] + b))[v]

N tokens, K components, E embedding size, V vocabulary.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.logit_map import LogitMap
from highrank.ops.mixture_cross_entropy.reference import Inputs, component_logits
from highrank.ops.mixture_cross_entropy.stream import chunk_size
from highrank.ops.precision import at_least_float32, log_sum, without_autocast

# Tables of a chunk's logits that autograd keeps.
NUM_TABLES = 6


def entropy_of(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logit_map: LogitMap | None = None,
) -> Tensor:
    """The definition (N,), with N × K × V numbers in memory."""
    log_q = component_logits(context, weight, bias, logit_map).log_softmax(-1)  # (N, K, V)
    log_p = log_sum(log_weight[..., None] + log_q, 1)  # (N, V)
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)


def with_gradient(entropy: Tensor, inputs: Inputs, chunk_bytes: int | None) -> Tensor:
    """The entropies (N,) of a pass, with the gradient of their definition."""
    size = max(1, chunk_size(inputs, chunk_bytes) // NUM_TABLES)
    found: Tensor = _Entropy.apply(entropy, inputs.logit_map, size, *inputs.differentiable[:4])
    return found


class _Entropy(Function):
    @staticmethod
    def forward(
        ctx: Any, entropy: Tensor, logit_map: LogitMap | None, size: int, *tensors: Tensor | None
    ) -> Tensor:
        ctx.logit_map, ctx.size = logit_map, size
        ctx.save_for_backward(*tensors)
        return entropy.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        entropies = partial(entropy_of, logit_map=ctx.logit_map)
        with without_autocast(upstream.device):
            if torch.is_grad_enabled():
                found = differentiable_gradients(entropies, tensors, wanted, upstream)
                return None, None, None, *found
            return None, None, None, *_by_chunks(entropies, tensors, wanted, upstream, ctx.size)


def _by_chunks(
    entropies: Any, tensors: Any, wanted: Any, upstream: Tensor, size: int
) -> list[Tensor | None]:
    """The wanted gradients: those of contexts and weights are filled in, the others summed."""
    pairs = zip(tensors, wanted, strict=True)
    found = [
        torch.zeros_like(x, dtype=at_least_float32(x.dtype)) if want else None for x, want in pairs
    ]
    for start in range(0, len(upstream), size):
        rows = slice(start, start + size)
        with torch.enable_grad():
            leaves = [
                None if x is None else (x[rows] if i < 2 else x).detach().requires_grad_(want)
                for i, (x, want) in enumerate(zip(tensors, wanted, strict=True))
            ]
            value = entropies(*leaves)
        inside = [x for x, want in zip(leaves, wanted, strict=True) if want and x is not None]
        gradients = iter(torch.autograd.grad(value, inside, upstream[rows]))
        for i, total in enumerate(found):
            if total is not None:
                (total[rows] if i < 2 else total).add_(next(gradients))
    pairs = zip(found, tensors, strict=True)
    return [None if total is None else total.to(x.dtype) for total, x in pairs]
