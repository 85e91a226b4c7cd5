"""The distributions of a divergence, a chunk of tokens and a block of columns at a time.

N tokens, n of a chunk, K components, R = n · K rows, E embedding size, V vocabulary, v columns of a
block.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.logit_map import LogitMap
from highrank.ops.loss.chunks import CHUNK_BYTES, new_table

# Rows of a chunk, of student and teacher together: more make no multiply faster. Logits are kept if
# at least a quarter of them fit.
CHUNK_ROWS, LEAST_ROWS = 1024, 256
# Numbers of a block's table: a handful of such tables stay in a core's cache.
BLOCK_NUMBERS = 2**16
# A dense teacher makes a handful of tables as wide as the vocabulary.
DENSE_TABLES = 8


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


class Mixture:
    """A mixture of softmaxes, a chunk of tokens at a time."""

    def __init__(
        self, source: Softmaxes, temperature: float, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        self.source, self.temperature, self.dtype = source, temperature, dtype
        self.keeps, bias = sizes.keeps, source.bias
        self.has_impossible = bias is not None and bool((bias == -torch.inf).any())
        rows, V = sizes.tokens * source.context.shape[1], len(source.weight)
        table = new_table(source.context, rows, V if sizes.keeps else sizes.columns)
        self.table = table.view(-1)

    def begin(self, tokens: slice, blocks: Sequence[slice]) -> None:
        """Turn to a chunk and find its normalisers."""
        context = self.source.context[tokens]
        n, K, E = context.shape
        self.shape, self.rows, self.known = (n, K), context.reshape(-1, E), set[int]()
        self.log_weight = self.source.log_weight[tokens].to(self.dtype)[..., None]  # (n, K, 1)
        if K > 1:
            z = (self._mapped(columns, False)[0] for columns in blocks)
            self.lse = self._log_total(x.logsumexp(-1, keepdim=True) for x in z)  # (n, K, 1)
        scores = (self._scores(self.block(columns)) for columns in blocks)
        self.log_total = self._log_total(x.logsumexp(-1, keepdim=True) for x in scores)  # (n, 1)

    def zeros(self, *shape: int) -> Tensor:
        return self.log_weight.new_zeros(shape)

    def block(self, columns: slice, slope: bool = False) -> Block:
        z, map_slope = self._mapped(columns, slope)
        if z.shape[1] == 1:
            return Block(z, map_slope, z.squeeze(1))
        return Block(z, map_slope, (z + (self.log_weight - self.lse)).logsumexp(1))

    def log_prob(self, block: Block) -> Tensor:
        """(n, v), at the temperature, normalised."""
        return self._scores(block) - self.log_total

    def log_prob_at(self, columns: slice) -> Tensor:
        return self.log_prob(self.block(columns))

    def posterior(self, block: Block) -> Tensor:
        """p(component | token), (n, K, v); 0 for a token that is ruled out."""
        log_p = block.log_p.masked_fill(block.log_p == -torch.inf, torch.inf)
        return (block.z + (self.log_weight - self.lse)).sub_(log_p[:, None]).exp_()

    def slope(self, block: Block, slope: Tensor, moved: Tensor | None) -> Tensor:
        """The slope in the logits (n, K, v) from that in log p (n, v)."""
        slope = slope[:, None]  # (n, 1, v)
        if moved is not None:
            q = (block.z - self.lse).exp_()  # (n, K, v)
            slope = self.posterior(block).mul_(slope).addcmul_(q, moved, value=-1.0)
        return slope if block.map_slope is None else slope * block.map_slope

    def _scores(self, block: Block) -> Tensor:
        return block.log_p if self.temperature == 1 else block.log_p / self.temperature

    def _mapped(self, columns: slice, slope: bool) -> tuple[Tensor, Tensor | None]:
        z, logit_map = self._logits(columns), self.source.logit_map
        if logit_map is None:
            return z, None
        if not slope:
            return logit_map(z), None
        found, map_slope = logit_map.with_slope(z.flatten(0, 1).clone())
        return found.view(z.shape), map_slope.view(z.shape)

    def _logits(self, columns: slice) -> Tensor:
        """W context + b, (n, K, v), in memory that is overwritten by the next block's."""
        R, width = len(self.rows), columns.stop - columns.start
        start = R * columns.start if self.keeps else 0
        z = self.table[start : start + R * width].view(R, width)
        if columns.start not in self.known:
            weight, bias = self.source.weight[columns], self.source.bias
            if bias is None:
                torch.mm(self.rows, weight.T, out=z)
            else:
                torch.addmm(bias[columns], self.rows, weight.T, out=z)
            if self.keeps:
                self.known.add(columns.start)
        return z.to(self.dtype).view(*self.shape, width)

    def _log_total(self, parts: Iterator[Tensor]) -> Tensor:
        """The logsumexp of blocks, from their own."""
        found = next(parts).double()
        for part in parts:
            torch.logaddexp(found, part.double(), out=found)
        return found.to(self.dtype)


class Table:
    """A dense distribution, a chunk of tokens at a time."""

    def __init__(self, source: Dense, temperature: float, sizes: Sizes, dtype: torch.dtype) -> None:
        self.source, self.temperature, self.dtype = source, temperature, dtype

    def begin(self, tokens: slice, blocks: Sequence[slice]) -> None:
        scores = self.source.log_prob(tokens).to(self.dtype) / self.temperature  # (n, V)
        self.log_p = scores.log_softmax(-1)
        self.has_impossible = bool((self.log_p == -torch.inf).any())

    def log_prob_at(self, columns: slice) -> Tensor:
        return self.log_p[:, columns].clone()
