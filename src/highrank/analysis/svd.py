"""Singular values of a T×V matrix of log-probabilities, without holding it.

`singular_values` takes rows in blocks and folds them into one V×V matrix that has the same singular
values, by one of two methods:

- *stable*: the triangular factor R of QR, updated with Householder reflections. The error is that
  of an SVD of the whole matrix, some ε·σ_max with float64's ε = 2.2e-16.
- *fast*: the Gram matrix AᵀA, whose eigenvalues are the σ². Squaring costs half of the digits:
  a σ has an error of up to T·ε·σ_max² / 2σ, and below √(T·ε)·σ_max nothing is known.

Both need memory for two V×V matrices of float64 and a block; with fewer rows than tokens, for two
T×V matrices.

`linear_singular_values` takes the factors of a linear head, for any T and V: as

    log P = [H, 1, -log Z] [W, b, 1]ᵀ

is a product of thin matrices, QR of both leaves a matrix of size E+2, which costs O((T + V) E²)
once the normalisers log Z are computed.

T contexts, V tokens, E embedding size, n rows of a block, p columns of a panel, c = E+2 columns of
a factor, or E+1 without a bias.
"""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.analysis.log_probs import BLOCK_BYTES, LogProbs, block_rows
from highrank.analysis.rank import Spectrum, press_threshold
from highrank.heads import MixtureHead
from highrank.progress import OnProgress

EPS = torch.finfo(torch.float64).eps
# Columns that are eliminated at once; columns of the Gram matrix that are multiplied at once.
PANEL, GRAM_PANEL = 64, 256
# Rows that are folded in at once: enough for multiplies to run at full speed.
FOLD_ROWS = 1024
# About how long an SVD takes, in rows that are folded in meanwhile, for each of min(T, V).
SVD_ROWS = 4.0


class TriangularFactor:
    """The rows added so far, up to a rotation: as they are up to V rows, then R of their QR."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_rows = 0
        self._matrix = torch.zeros(min(num_rows, num_columns), num_columns, dtype=torch.float64)
        self._is_triangular = False

    def add(self, block: Tensor) -> None:
        """Fold rows (n, V) in; the block is overwritten."""
        free = max(0, len(self._matrix) - self.num_rows)
        self._matrix[self.num_rows : self.num_rows + free][: len(block)] = block[:free]
        self.num_rows += len(block)
        if len(block) > free:
            if not self._is_triangular:
                self._matrix = torch.geqrf(self._matrix)[0].triu_()  # (V, V)
                self._is_triangular = True
            eliminate(self._matrix, block[free:])

    def singular_values(self) -> tuple[Tensor, float]:
        """In descending order, and the round-off below which they are unknown."""
        values = torch.linalg.svdvals(self._matrix[: self.num_rows])
        shape = (self.num_rows, self._matrix.shape[1])
        return values, press_threshold(values[0].item(), shape, EPS)


class GramMatrix:
    """AᵀA of the rows added so far, or the rows themselves while there are at most V."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_rows = 0
        self._is_squared = num_rows > num_columns
        size = num_columns if self._is_squared else num_rows
        self._matrix = torch.zeros(size, num_columns, dtype=torch.float64)

    def add(self, block: Tensor) -> None:
        """Add rows (n, V)."""
        if self._is_squared:
            # The lower triangle is enough.
            for start in range(0, block.shape[1], GRAM_PANEL):
                end = start + GRAM_PANEL
                self._matrix[start:end, :end].addmm_(block[:, start:end].T, block[:, :end])
        else:
            self._matrix[self.num_rows : self.num_rows + len(block)] = block
        self.num_rows += len(block)

    def singular_values(self) -> tuple[Tensor, float]:
        """In descending order, and the round-off below which they are unknown."""
        gram = self._matrix
        if not self._is_squared:
            gram = gram[: self.num_rows] @ gram[: self.num_rows].T  # (T, T)
        squares = torch.linalg.eigvalsh(gram, UPLO="L").flip(0)
        values = squares[: self.num_rows].clamp_min_(0).sqrt_()
        longest = max(self.num_rows, self._matrix.shape[1])
        return values, values[0].item() * math.sqrt(longest * EPS)


METHODS: dict[str, type[TriangularFactor] | type[GramMatrix]] = {
    "stable": TriangularFactor,
    "fast": GramMatrix,
}


def singular_values(
    source: LogProbs,
    method: str = "stable",
    *,
    counts: Sequence[int] = (),
    on_progress: OnProgress | None = None,
) -> tuple[Spectrum, ...]:
    """The spectrum of the first rows, for each of `counts`, and of all rows: the last one.

    Every count costs an SVD of its own.

    Args:
        method: "stable" or "fast".
        counts: numbers of rows, at most T, for rank against the number of contexts.
        on_progress: called with the fraction of the work done and what is being done.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {list(METHODS)}, got {method!r}")
    T, V = source.num_contexts, source.vocab_size
    stops = stopping_points(counts, T)
    folded = METHODS[method](T, V)
    spectra: list[Spectrum] = []
    total = T + SVD_ROWS * sum(min(stop, V) for stop in stops)

    def show(text: str) -> None:
        done = folded.num_rows + SVD_ROWS * sum(len(spectrum.values) for spectrum in spectra)
        if on_progress is not None:
            on_progress(done / total, text)

    for rows in _folds(source, stops):
        folded.add(rows)
        show(f"{folded.num_rows:,} of {T:,} contexts")
        if folded.num_rows in stops:
            show(f"singular values of {min(folded.num_rows, V):,}")
            values, floor = folded.singular_values()
            spectrum = Spectrum(
                values=values,
                shape=(folded.num_rows, V),
                precision=source.precision,
                method=method,
                floor=floor,
            )
            spectra.append(spectrum)
    show("done")
    return tuple(spectra)


def peak_bytes(num_contexts: int, vocab_size: int) -> int:
    """About what `singular_values` needs: two matrices, the rows to fold in, some blocks."""
    rows = 2 * min(num_contexts, vocab_size) + min(FOLD_ROWS, num_contexts)
    return 8 * rows * vocab_size + 6 * BLOCK_BYTES


def stopping_points(counts: Sequence[int], num_rows: int) -> list[int]:
    """The counts in ascending order, and the number of rows as the last."""
    for count in counts:
        if not 1 <= count <= num_rows:
            raise ValueError(f"counts must be from 1 to {num_rows}, got {count}")
    return sorted({*counts, num_rows})


def _folds(source: LogProbs, stops: Sequence[int]) -> Iterator[Tensor]:
    """The rows (n, V) in float64, n = `FOLD_ROWS` but where a stop cuts; to be overwritten."""
    rows = torch.empty(min(FOLD_ROWS, source.num_contexts), source.vocab_size, dtype=torch.float64)
    start = end = 0
    for block in source.blocks():
        while len(block):
            cut = min(start + len(rows), next(stop for stop in stops if stop > start))
            taken = block[: cut - end]
            rows[end - start : end - start + len(taken)] = taken
            block, end = block[len(taken) :], end + len(taken)
            if end == cut:
                yield rows[: end - start]
                start = end


def eliminate(triangle: Tensor, block: Tensor) -> None:
    """Rotate [triangle; block] to [R; 0], in place: R is left in `triangle`.

    Panel by panel, a QR of p columns yields reflections I - U S Uᵀ with U = [I; lower] and
    S⁻¹ = upper(lowerᵀ lower) + 1/τ, which two multiplies apply to the columns on the right.

    Args:
        triangle: (V, V), upper triangular.
        block: (n, V); it is overwritten.
    """
    for start in range(0, len(triangle), PANEL):
        here, right = slice(start, start + PANEL), slice(start + PANEL, None)
        corner = triangle[here, here]  # (p, p)
        reflections, tau = torch.geqrf(torch.cat((corner, block[:, here])))  # (p + n, p), (p,)
        lower = reflections[len(corner) :]  # (n, p)
        corner.copy_(reflections[: len(corner)].triu())
        inverse = (lower.T @ lower).triu_(1)  # (p, p)
        # τ is 0 for a column that is zero already: then 1/τ = inf, and its part below is 0.
        inverse.diagonal().copy_(1 / tau)
        part = torch.addmm(triangle[here, right], lower.T, block[:, right])  # (p, V - …)
        part = torch.linalg.solve_triangular(inverse.T, part, upper=False)
        triangle[here, right] -= part
        block[:, right].addmm_(lower, part, alpha=-1)


@torch.no_grad()
def linear_singular_values(
    context: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    counts: Sequence[int] = (),
    on_progress: OnProgress | None = None,
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
    head: MixtureHead,
    hidden: Tensor,
    *,
    counts: Sequence[int] = (),
    on_progress: OnProgress | None = None,
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
    context = [twin.features(rows.double()).context.squeeze(-2) for rows in hidden.split(size)]
    return linear_singular_values(
        torch.cat(context), twin.weight, twin.bias, counts=counts, on_progress=on_progress
    )


def _log_normalisers(
    context: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    on_progress: OnProgress | None,
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
    """The spectrum of rows (T, c) times columns (V, c) transposed."""
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
