"""The softmax bottleneck as functions: docs/mathematics.md proves what they compute.

After Yang, Dai, Salakhutdinov and Cohen (2018), arXiv 1711.03953. Matrices are either float64
tensors, where whatever is below `TOLERANCE` of the largest counts as zero, or arrays of fractions
from `rational`, where nothing is rounded and nothing is tolerated.

C contexts, V tokens, K components, d size of a context; A is log P* of a language, (C, V).
"""

from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from highrank.heads.mos import MixtureOfSoftmaxes

TOLERANCE = 1e-10

Rationals = NDArray[np.object_]
Matrix = TypeVar("Matrix", Tensor, Rationals)


class MinimumRank(NamedTuple, Generic[Matrix]):
    rank: int
    shift: Matrix
    """λ, (C,)."""
    bias: Matrix
    """b, (V,); zeros where none is allowed."""
    matrix: Matrix
    """A + λ1ᵀ - 1bᵀ, (C, V): of all such matrices, one of the lowest rank."""


class SoftmaxLayer(NamedTuple, Generic[Matrix]):
    """A softmax in C contexts: softmax(hidden weightᵀ + bias)."""

    hidden: Matrix
    """(C, d)."""
    weight: Matrix
    """(V, d)."""
    bias: Matrix
    """(V,)."""

    @property
    def logits(self) -> Matrix:
        logits: Matrix = self.hidden @ self.weight.T + self.bias  # (C, V)
        return logits


def rational(numbers: ArrayLike) -> Rationals:
    """The same numbers as an array of fractions."""
    exact: Rationals = np.frompyfunc(Fraction, 1, 1)(np.array(numbers, dtype=object))
    return exact


def base_two_softmax(logits: Rationals) -> Rationals:
    """2^logits / Σ_v 2^logits of each row: exact for whole numbers, and softmax(logits · ln 2)."""
    _check(logits)
    for logit in logits.ravel().tolist():
        if logit.denominator != 1:
            raise ValueError(f"logits must be whole numbers, got {logit}")
    powers: Rationals = rational([[2]]) ** logits  # (C, V)
    prob: Rationals = powers / powers.sum(1)[:, None]
    return prob


def rank(matrix: Matrix) -> int:
    """Dimension of the row space. Of floats: singular values above TOLERANCE · the largest."""
    _check(matrix)
    return _rank(matrix, original=matrix)


def row_shift(matrix: Matrix, shift: Matrix) -> Matrix:
    """A + λ1ᵀ: the number λ_c is added to the whole row c, which no softmax notices.

    Args:
        shift: λ, (C,).
    """
    _check(matrix)
    if tuple(shift.shape) != (len(matrix),):
        raise ValueError(f"shift must be ({len(matrix)},), got {tuple(shift.shape)}")
    shifted: Matrix = matrix + shift[:, None]
    return shifted


def wrong_contexts(logits: Matrix, log_prob: Matrix) -> list[int]:
    """The contexts in which softmax(logits) differs from softmax(log_prob).

    They are the rows in which logits - log_prob is not one number throughout: floats may differ by
    TOLERANCE · the largest absolute value of both matrices.
    """
    _check(logits)
    _check(log_prob)
    if logits.shape != log_prob.shape:
        raise ValueError(f"logits must be {tuple(log_prob.shape)}, got {tuple(logits.shape)}")
    difference = logits - log_prob  # (C, V)
    uneven = abs(difference - difference[:, :1])  # (C, V)
    tolerance = 0.0
    if isinstance(logits, Tensor) and isinstance(log_prob, Tensor):
        tolerance = TOLERANCE * max(float(logits.abs().max()), float(log_prob.abs().max()))
    return [context for context, row in enumerate(uneven) if max(row.tolist()) > tolerance]


def in_shift_family(candidate: Matrix, matrix: Matrix) -> bool:
    """Whether candidate is in F(A) = {A + λ1ᵀ}: Property 1, if and only if the softmaxes agree."""
    return not wrong_contexts(candidate, matrix)


def minimum_rank_over_shifts(matrix: Matrix) -> MinimumRank[Matrix]:
    """min over λ of rank(A + λ1ᵀ), and the λ that attains it: minus the mean of each row.

    It is rank(A) - 1 if 1ᵀ is in the row space of A, and rank(A) otherwise. A softmax without bias
    can express P* if and only if its d is at least this.
    """
    _check(matrix)
    shift = -(matrix.sum(1) / matrix.shape[1])  # (C,)
    centred = row_shift(matrix, shift)  # (C, V)
    return MinimumRank(_rank(centred, original=matrix), shift, 0 * matrix[0], centred)


def minimum_rank_over_shifts_and_biases(matrix: Matrix) -> MinimumRank[Matrix]:
    """min over λ and b of rank(A + λ1ᵀ - 1bᵀ), and the λ and b that attain it.

    b is the mean of the rows that `minimum_rank_over_shifts` has centred. The minimum is rank(A) or
    up to two less; a softmax with bias b can express P* if and only if its d is at least this.
    """
    _, shift, _, centred = minimum_rank_over_shifts(matrix)
    bias = centred.sum(0) / len(centred)  # (V,)
    centred = centred - bias  # (C, V)
    return MinimumRank(_rank(centred, original=matrix), shift, bias, centred)


def smallest_exact_softmax(log_prob: Matrix, *, bias: bool) -> SoftmaxLayer[Matrix]:
    """Contexts, output embedding and bias of the smallest d whose softmax is P* in every context.

    Args:
        log_prob: A, (C, V), finite.
        bias: whether the layer may have one; zeros otherwise.
    """
    minimum = minimum_rank_over_shifts_and_biases if bias else minimum_rank_over_shifts
    size, _, token_bias, centred = minimum(log_prob)
    hidden, weight = _factors(centred, size)
    return SoftmaxLayer(hidden, weight, token_bias)


def nearby_softmax(log_prob: Tensor, size: int) -> tuple[SoftmaxLayer[Tensor], float]:
    """A softmax of size d with bias, and a bound on KL(P* ‖ its distribution) in every context.

    The layer is the truncated singular value decomposition of the matrix of least rank, the bound
    ½ σ², where σ is the first singular value left out: a high rank alone does not make it large.
    """
    if size < 0:
        raise ValueError(f"size must be at least 0, got {size}")
    _, _, bias, centred = minimum_rank_over_shifts_and_biases(log_prob)
    hidden, weight = _factors(centred, size)
    left_out = torch.linalg.svdvals(centred)[size : size + 1].sum().item()
    return SoftmaxLayer(hidden, weight, bias), 0.5 * left_out**2


def mixed_context(prior: Matrix, context: Matrix) -> Matrix:
    """Σ_k prior_k context_k, (C, d): the one context whose softmax is a mixture of contexts.

    Args:
        prior: (C, K), each row sums to one.
        context: (C, K, d).
    """
    mixed: Matrix = (prior[:, :, None] * context).sum(1)  # (C, d)
    return mixed


def symmetric_mixture(embedding: Tensor) -> MixtureOfSoftmaxes:
    """Two softmaxes of size 1 whose mixture has log-probabilities of any rank, given enough tokens.

    Its tokens are w and -w for each number w of `embedding`; hidden state t has the contexts t and
    -t, each with weight ½, so that P(v | t) = cosh(t w_v) / Σ_u cosh(t w_u).

    Args:
        embedding: (V / 2,), float64, positive and distinct.
    """
    tokens = torch.cat([embedding, -embedding])  # (V,)
    head = MixtureOfSoftmaxes(
        1, len(tokens), 2, 1, activation="identity", bias=False, dtype=embedding.dtype
    )
    state = {
        "weight": tokens[:, None],
        "prior.weight": tokens.new_zeros(2, 1),
        "latent.weight": tokens.new_tensor([[1], [-1]]),
        "latent.bias": tokens.new_zeros(2),
    }
    head.load_state_dict(state)
    return head


def _check(matrix: Matrix) -> None:
    if isinstance(matrix, Tensor):
        valid = matrix.dtype == torch.float64 and bool(matrix.isfinite().all())
    else:
        valid = all(isinstance(number, Fraction) for number in matrix.flat)
    if not valid or len(matrix.shape) != 2 or 0 in matrix.shape:
        raise ValueError(
            "matrix must be (C, V), a finite float64 tensor or an array from `rational`, "
            f"got {matrix.dtype} {tuple(matrix.shape)}"
        )


def _rank(matrix: Matrix, original: Matrix) -> int:
    """The rank of a matrix that was made of another: round-off is relative to the original."""
    if isinstance(matrix, Tensor):
        smallest = TOLERANCE * torch.linalg.matrix_norm(original, 2)
        return int((torch.linalg.svdvals(matrix) > smallest).sum())
    return len(_echelon(matrix)[1])


def _factors(matrix: Matrix, size: int) -> tuple[Matrix, Matrix]:
    """H (C, d) and W (V, d) with H Wᵀ = matrix, or of floats as close as d allows."""
    if isinstance(matrix, Tensor):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return left[:, :size] * values[:size], right[:size].T
    rows, pivots = _echelon(matrix)
    assert len(pivots) == size, (len(pivots), size)
    return matrix[:, pivots], rows.T


def _echelon(matrix: Rationals) -> tuple[Rationals, list[int]]:
    """The rows other than zero of the reduced row echelon form, and their pivot columns."""
    rows = rational(matrix)
    pivots: list[int] = []
    for column in range(rows.shape[1]):
        top = len(pivots)
        candidates = [row for row in range(top, len(rows)) if rows[row, column] != 0]
        if not candidates:
            continue
        rows[[top, candidates[0]]] = rows[[candidates[0], top]]
        rows[top] = rows[top] / rows[top, column]
        for row in range(len(rows)):
            if row != top:
                rows[row] = rows[row] - rows[row, column] * rows[top]
        pivots.append(column)
    return rows[: len(pivots)], pivots
