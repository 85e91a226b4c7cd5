"""Singular values of a linear head's log-probabilities, for any number of contexts and words.

    log P = [H, 1, -log Z] [W, b, 1]ᵀ

is a product of thin factors, so QR of both leaves a matrix of size E+2: O((T + V) E²) once the
normalisers log Z are there. T contexts, V words, E size of a context, n rows of a block, c = E+2
columns of a factor, or E+1 without a bias.
"""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.analysis.rank import press_threshold
from highrank.analysis.singular_values import EPS, stopping_points
from highrank.analysis.source import block_rows
from highrank.analysis.spectrum import Spectrum
from highrank.heads import Head


@torch.no_grad()
def linear_singular_values(
    context: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    counts: Sequence[int] = (),
    on_progress: Callable[[float, str], None] | None = None,
) -> tuple[Spectrum, ...]:
    """The spectrum of log softmax(W context + b), computed in float64.

    One of the first rows for each of `counts`, and as the last one that of all rows.

    Args:
        context: (T, E).
        weight: (V, E).
        bias: (V,).
        counts: numbers of rows, for rank against the number of contexts.
    """
    for name, matrix in (("context", context), ("weight", weight)):
        if matrix.dim() != 2 or matrix.numel() == 0:
            raise ValueError(f"{name} must be a matrix and not empty, got {tuple(matrix.shape)}")
    stops = stopping_points(counts, len(context))
    context, weight = context.double(), weight.double()
    # A shift of a row's logits changes no probability. Centred, they are orthogonal to the
    # normalisers' part of the matrix, and nothing cancels.
    weight = weight - weight.mean(0)  # (V, E)
    bias = None if bias is None else bias.double() - bias.double().mean()
    normalisers = _log_normalisers(context, weight, bias, on_progress)  # (T, 1)
    left, right = [context, -normalisers], [weight, torch.ones_like(weight[:, :1])]
    if bias is not None:
        left.append(torch.ones_like(normalisers))
        right.append(bias[:, None])
    rows, columns = torch.cat(left, 1), torch.cat(right, 1)  # (T, c), (V, c)
    if not (rows.isfinite().all() and columns.isfinite().all()):
        raise ValueError("context, weight and bias must be finite, got others")
    return tuple(_product_spectrum(rows[:count], columns) for count in stops)


@torch.no_grad()
def head_singular_values(
    head: Head,
    hidden: Tensor,
    *,
    counts: Sequence[int] = (),
    on_progress: Callable[[float, str], None] | None = None,
) -> tuple[Spectrum, ...]:
    """`linear_singular_values` of a head with one softmax, recomputed in float64.

    Args:
        hidden: (T, D).
    """
    if head.rank_bound is None:
        raise ValueError(f"the head must have one softmax, got {head}")
    if hidden.dim() != 2 or hidden.numel() == 0:
        raise ValueError(f"hidden must be (T, D) and not empty, got {tuple(hidden.shape)}")
    twin = copy.deepcopy(head).double().eval()
    size = block_rows(head.num_components * head.embedding_size)
    context = [twin.softmaxes(rows.double()).context.squeeze(-2) for rows in hidden.split(size)]
    return linear_singular_values(
        torch.cat(context), twin.weight, twin.bias, counts=counts, on_progress=on_progress
    )


def _log_normalisers(
    context: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    on_progress: Callable[[float, str], None] | None,
) -> Tensor:
    """log Σ exp(W context + b), (T, 1)."""
    log_z = context.new_empty(len(context), 1)
    size = block_rows(len(weight))
    for start in range(0, len(context), size):
        block = slice(start, start + size)
        log_z[block] = F.linear(context[block], weight, bias).logsumexp(-1, keepdim=True)  # (n, 1)
        if on_progress is not None:
            on_progress(min(1.0, (start + size) / len(context)), "normalisers")
    return log_z


def _product_spectrum(rows: Tensor, columns: Tensor) -> Spectrum:
    """Of rows (T, c) times columns (V, c) transposed."""
    # Both factors get equally long columns: the product is the same, its error smaller.
    scale = (columns.norm(dim=0) / rows.norm(dim=0)).sqrt()  # (c,)
    scale = scale.where((scale > 0) & scale.isfinite(), torch.ones_like(scale))
    left = torch.linalg.qr(rows * scale, mode="r").R  # (min(T, c), c)
    right = torch.linalg.qr(columns / scale, mode="r").R  # (min(V, c), c)
    size = torch.linalg.matrix_norm(left, 2) * torch.linalg.matrix_norm(right, 2)
    return Spectrum(
        values=torch.linalg.svdvals(left @ right.T),
        shape=(len(rows), len(columns)),
        precision=torch.float64,
        method="linear",
        floor=press_threshold(size.item(), (left.shape[1], right.shape[1]), EPS),
    )
