"""The distributions of a divergence, a chunk of tokens and a block of columns at a time.

N tokens, n of a chunk, K components, R = n · K rows, E embedding size, V vocabulary, v columns of a
block.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.logit_map import LogitMap
from highrank.ops.loss.chunks import CHUNK_BYTES, new_table

# Rows of a chunk, of student and teacher together: more make no multiply faster. Logits are kept if
# at least a quarter of them fit.
CHUNK_ROWS, LEAST_ROWS = 1024, 256
# Numbers of a block's table: a handful of such tables stay in a core's cache.
BLOCK_NUMBERS = 2**17
# A dense teacher makes a handful of tables as wide as the vocabulary.
DENSE_TABLES = 8
LOG2_E = 1 / math.log(2)


class Softmaxes(NamedTuple):
    """A mixture of softmaxes over one output embedding."""

    context: Tensor
    """(N, K, E)."""
    log_weight: Tensor
    """(N, K), normalised."""
    weight: Tensor
    """(V, E)."""
    bias: Tensor | None
    logit_map: LogitMap | None


class Dense(NamedTuple):
    """Any distribution, without gradients."""

    log_prob: Callable[[slice], Tensor]
    """log p (n, V) of these tokens."""
    dtype: torch.dtype


class Sizes(NamedTuple):
    tokens: int
    """Of a chunk."""
    columns: int
    """Of a block."""
    keeps: bool
    """Whether the logits of a chunk are kept."""

    @classmethod
    def of(
        cls,
        student: Softmaxes,
        teacher: Softmaxes | Dense,
        dtype: torch.dtype,
        chunk_bytes: int | None,
    ) -> "Sizes":
        row_bytes = len(student.weight) * dtype.itemsize
        fitting = (CHUNK_BYTES if chunk_bytes is None else chunk_bytes) // row_bytes
        K = student.context.shape[1]
        other = teacher.context.shape[1] if isinstance(teacher, Softmaxes) else 1
        keeps = fitting >= LEAST_ROWS
        rows = min(CHUNK_ROWS, fitting) if keeps else CHUNK_ROWS
        tokens = max(1, rows // (K + other))
        if isinstance(teacher, Dense):
            tokens = max(1, min(tokens, fitting // DENSE_TABLES))
        tokens = min(tokens, max(1, len(student.context)))
        columns = min(len(student.weight), max(64, BLOCK_NUMBERS // (tokens * max(K, other))))
        return cls(tokens, columns, keeps)


class Block(NamedTuple):
    z: Tensor
    """(n, K, v), the mapped logits."""
    map_slope: Tensor | None
    """(n, K, v), φ′ of the logits."""
    log_p: Tensor
    """(n, v), but for a constant if K = 1."""
    score: Tensor
    """(n, v), log p / τ."""


class Mixture:
    """A mixture of softmaxes, a chunk of tokens at a time."""

    log_total: Tensor
    """(n, 1), the logsumexp of the scores."""

    def __init__(
        self, source: Softmaxes, temperature: float, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        self.source, self.temperature, self.dtype = source, temperature, dtype
        self.keeps, bias = sizes.keeps, source.bias
        self.has_impossible = bias is not None and bool((bias == -torch.inf).any())
        self.weights = source.weight.split(sizes.columns)  # (v, E) each
        self.transposed = [weight.T for weight in self.weights]
        self.biases = None if bias is None else bias.split(sizes.columns)  # (v,) each
        rows, V = sizes.tokens * source.context.shape[1], len(source.weight)
        table = new_table(source.context, rows, V if sizes.keeps else sizes.columns)
        self.table = table.view(-1)

    def begin(self, tokens: slice) -> None:
        """Turn to a chunk and find its normalisers."""
        context = self.source.context[tokens]
        n, K, E = context.shape
        self.shape, self.rows, self.known = (n, K), context.reshape(-1, E), set[int]()
        self.tables = self._places(len(self.rows))
        log_weight = self.source.log_weight[tokens].to(self.dtype)[..., None]  # (n, K, 1)
        if K > 1:
            self.lse = log_total(self._mapped_logits, len(self.tables), False)  # (n, K, 1)
            self.offset = log_weight - self.lse
        if K > 1 and self.temperature == 1:
            self.log_total = log_weight.new_zeros(n, 1)
        else:
            self.log_total = log_total(self.scores, len(self.tables), self.is_spare())

    def block(self, index: int, slope: bool = False) -> Block:
        """The columns; with φ′ if there is to be a slope."""
        z, map_slope = self._mapped(index, slope)
        log_p = z.squeeze(1) if z.shape[1] == 1 else log_sum(z + self.offset)
        score = log_p if self.temperature == 1 else log_p / self.temperature
        return Block(z, map_slope, log_p, score)

    def scores(self, index: int) -> Tensor:
        return self.block(index).score

    def is_spare(self, last: bool = False) -> bool:
        """Whether a block's scores may be overwritten, in the last pass or in another."""
        return self.shape[1] == 1 and (last or not self.keeps)

    def posterior(self, block: Block) -> Tensor:
        """p(component | token), (n, K, v); 0 for a token that is ruled out."""
        log_p = block.log_p.masked_fill(block.log_p == -torch.inf, torch.inf)
        return exp_shifted(block.z + self.offset, log_p[:, None], True)

    def slope(self, block: Block, slope: Tensor, moved: Tensor | None) -> Tensor:
        """The slope in the logits (n, K, v) from that in log p (n, v)."""
        slope = slope[:, None]  # (n, 1, v)
        if moved is not None:
            q = exp_shifted(block.z, self.lse)  # (n, K, v)
            slope = self.posterior(block).mul_(slope).addcmul_(q, moved, value=-1.0)
        return slope if block.map_slope is None else slope * block.map_slope

    def _mapped_logits(self, index: int) -> Tensor:
        return self._mapped(index)[0]

    def _mapped(self, index: int, slope: bool = False) -> tuple[Tensor, Tensor | None]:
        z, logit_map = self._logits(index), self.source.logit_map
        if logit_map is None:
            return z, None
        if not slope:
            return logit_map(z), None
        found, map_slope = logit_map.with_slope(z.flatten(0, 1).clone())
        return found.view(z.shape), map_slope.view(z.shape)

    def _logits(self, index: int) -> Tensor:
        """W context + b, (n, K, v), in memory that the next block overwrites unless it is kept."""
        z = self.tables[index]  # (R, v)
        if index not in self.known:
            if self.biases is None:
                torch.mm(self.rows, self.transposed[index], out=z)
            else:
                torch.addmm(self.biases[index], self.rows, self.transposed[index], out=z)
            if self.keeps:
                self.known.add(index)
        return z.to(self.dtype).view(*self.shape, z.shape[1])

    def _places(self, num_rows: int) -> list[Tensor]:
        """Where the logits of each block are, (R, v)."""
        sizes = [num_rows * len(weight) for weight in self.weights]
        if self.keeps:
            parts = self.table[: sum(sizes)].split(sizes)
        else:
            parts = tuple(self.table[:size] for size in sizes)
        return [part.view(num_rows, -1) for part in parts]


class Table:
    """A dense distribution, a chunk of tokens at a time."""

    def __init__(self, source: Dense, temperature: float, sizes: Sizes, dtype: torch.dtype) -> None:
        self.source, self.temperature, self.dtype = source, temperature, dtype
        self.width = sizes.columns

    def begin(self, tokens: slice) -> None:
        table = self.source.log_prob(tokens).to(self.dtype) / self.temperature  # (n, V)
        self.log_total = table.logsumexp(-1, keepdim=True)  # (n, 1)
        self.has_impossible = bool((table == -torch.inf).any())
        self.blocks = table.split(self.width, 1)  # (n, v) each

    def scores(self, index: int) -> Tensor:
        return self.blocks[index]

    def is_spare(self, last: bool = False) -> bool:
        return last


def log_total(scores: Callable[[int], Tensor], num_blocks: int, in_place: bool) -> Tensor:
    """The logsumexp over all columns (..., 1) of scores (..., v), which may be overwritten."""
    first = scores(0)
    dtype, shift = first.dtype, first.amax(-1, keepdim=True)
    total = exp_shifted(first, shift, in_place).sum(-1, keepdim=True).double()
    for index in range(1, num_blocks):
        total += exp_shifted(scores(index), shift, in_place).sum(-1, keepdim=True)
    if total.isfinite().all():
        return (total.log() + shift).to(dtype)
    # A later score is larger by more than the exponent can tell, or all before were -inf.
    found = scores(0).logsumexp(-1, keepdim=True).double()
    for index in range(1, num_blocks):
        found = torch.logaddexp(found, scores(index).logsumexp(-1, keepdim=True).double())
    return found.to(dtype)


def log_sum(joint: Tensor) -> Tensor:
    """The logsumexp over components (n, v) of (n, K, v), which are overwritten."""
    top = joint.amax(1).clamp_(min=torch.finfo(joint.dtype).min)  # (n, v)
    return exp_shifted(joint, top[:, None], True).sum(1).log_().add_(top)


def exp_shifted(x: Tensor, shift: Tensor, in_place: bool = False) -> Tensor:
    """exp(x - shift)."""
    # On a CPU exp2 takes less than half of the time of exp, and the factor costs none.
    out = x if in_place else torch.empty_like(x)
    return torch.add(shift * -LOG2_E, x, alpha=LOG2_E, out=out).exp2_()
