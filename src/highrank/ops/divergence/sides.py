"""The distributions of a divergence, a chunk of tokens and a block of columns at a time.

All logarithms but those of the sources are to the base 2: on a CPU exp2 takes less than half of the
time of exp, and factors cost nothing.

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
# Where they do not, logits may take this fraction of the memory of the weight's gradient: with what
# blocks take, it is less than twice the gradient. For chunks of fewer tokens, reading the weights
# each time costs more than making logits again.
KEPT_FRACTION, LEAST_TOKENS = 0.9, 96
# Logits of a block, of student and teacher together: a handful of such tables stay in a core's
# cache.
BLOCK_NUMBERS = 2**18
# A dense teacher makes a handful of tables as wide as the vocabulary.
DENSE_TABLES = 8
LOG2_E = 1 / math.log(2)
# Far from where float32 underflows.
SAFE_PROB = 2.0**-100


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
        trains_weight: bool,
    ) -> "Sizes":
        V, E = student.weight.shape
        K = student.context.shape[1]
        other = teacher.context.shape[1] if isinstance(teacher, Softmaxes) else 1
        fitting = (CHUNK_BYTES if chunk_bytes is None else chunk_bytes) // (V * dtype.itemsize)
        keeps = fitting >= LEAST_ROWS
        is_default = chunk_bytes is None and isinstance(teacher, Softmaxes)
        if is_default and trains_weight and not keeps:
            # The gradient has E rows as long as those of logits.
            more = int(KEPT_FRACTION * E)
            if more >= LEAST_TOKENS * (K + other):
                fitting, keeps = more, True
        rows = min(CHUNK_ROWS, fitting) if keeps else CHUNK_ROWS
        tokens = max(1, rows // (K + other))
        if isinstance(teacher, Dense):
            tokens = max(1, min(tokens, fitting // DENSE_TABLES))
        # Chunks of one size: the last would take nearly as long with a few tokens.
        num_tokens = max(1, len(student.context))
        tokens = math.ceil(num_tokens / math.ceil(num_tokens / tokens))
        columns = min(V, max(64, BLOCK_NUMBERS // (tokens * (K + other))))
        return cls(tokens, columns, keeps)


class Block(NamedTuple):
    bits: Tensor
    """(n, v), log p at the temperature, for the caller to overwrite."""
    z: Tensor | None
    """(n, K, v), the mapped logits; not there if they are the bits."""
    map_slope: Tensor | None
    """(n, K, v), φ′ of the logits."""
    log_p: Tensor | None
    """(n, v), at temperature 1, but for a constant if K = 1."""


class Mixture:
    """A mixture of softmaxes, a chunk of tokens at a time."""

    def __init__(
        self, source: Softmaxes, temperature: float, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        self.source, self.temperature, self.dtype = source, temperature, dtype
        self.keeps, bias, (_, K, _) = sizes.keeps, source.bias, source.context.shape
        self.has_impossible = bias is not None and bool((bias == -torch.inf).any())
        # Then the logits are log p at the temperature, but for the normaliser.
        is_plain = K == 1 and source.logit_map is None
        self.is_direct = is_plain and source.context.dtype == dtype
        self.rate = LOG2_E / temperature if self.is_direct else 1.0
        if bias is not None and self.is_direct:
            bias = bias * self.rate
        self.weights = source.weight.split(sizes.columns)  # (v, E) each
        self.transposed = [weight.T for weight in self.weights]
        self.biases = None if bias is None else bias.split(sizes.columns)  # (v,) each
        width = len(source.weight) if sizes.keeps else sizes.columns
        self.table = new_table(source.context, sizes.tokens * K, width).view(-1)

    def begin(self, tokens: slice) -> None:
        """Turn to a chunk and find its normalisers."""
        context = self.source.context[tokens]
        n, K, E = context.shape
        self.shape, self.rows, self.known = (n, K), context.reshape(-1, E), set[int]()
        self.tables = self._places(len(self.rows))
        log_weight = self.source.log_weight[tokens].to(self.dtype)[..., None]  # (n, K, 1)
        if K > 1:
            # Minus the logsumexp of each component, (n, K, 1).
            self.lift = lift(self._components, log_weight.new_zeros(n, K, 1), len(self.tables))
            self.offset = log_weight * LOG2_E + self.lift
        self.total_lift = log_weight.new_zeros(n, 1)
        if K == 1 or self.temperature != 1:
            self.total_lift = lift(self._bits, self.total_lift, len(self.tables))

    def block(self, index: int, slope: bool = False) -> Block:
        """The columns; with φ′ if there is to be a slope."""
        return self._block(index, self.total_lift, slope)

    def bits(self, index: int) -> Tensor:
        """(n, v), log p at the temperature, for the caller to overwrite."""
        return self._bits(index, self.total_lift)

    def posterior(self, block: Block) -> Tensor:
        """p(component | token), (n, K, v); 0 for a token that is ruled out."""
        assert block.z is not None and block.log_p is not None
        log_p = block.log_p.masked_fill(block.log_p == -torch.inf, torch.inf)
        return torch.add(self.offset, block.z, alpha=LOG2_E).sub_(log_p[:, None]).exp2_()

    def slope(self, block: Block, slope: Tensor, moved: Tensor | None) -> Tensor:
        """The slope in the logits (n, K, v) from that in log p (n, 1, v)."""
        if moved is not None:
            assert block.z is not None
            q = torch.add(self.lift, block.z, alpha=LOG2_E).exp2_()  # (n, K, v)
            slope = self.posterior(block).mul_(slope).addcmul_(q, moved, value=-1.0)
        return slope if block.map_slope is None else slope * block.map_slope

    def _bits(self, index: int, total_lift: Tensor) -> Tensor:
        return self._block(index, total_lift, False).bits

    def _block(self, index: int, total_lift: Tensor, slope: bool) -> Block:
        if self.is_direct:
            return Block(self._direct(index, total_lift), None, None, None)
        z, map_slope = self._mapped(index, slope)
        if z.shape[1] == 1:
            log_p = z.squeeze(1) * LOG2_E
        else:
            log_p = log_sum(torch.add(self.offset, z, alpha=LOG2_E))
        bits = torch.add(total_lift, log_p, alpha=1 / self.temperature)
        return Block(bits, z, map_slope, log_p)

    def _direct(self, index: int, total_lift: Tensor) -> Tensor:
        if self.keeps:
            return self._logits(index).squeeze(1) + total_lift
        # The normaliser is added before the product, where it costs nothing.
        z, weight = self.tables[index], self.transposed[index]  # (n, v)
        if self.biases is None:
            return torch.addmm(total_lift, self.rows, weight, alpha=self.rate, out=z)
        return torch.add(total_lift, self.biases[index], out=z).addmm_(
            self.rows, weight, alpha=self.rate
        )

    def _components(self, index: int, shift: Tensor) -> Tensor:
        return torch.add(shift, self._mapped(index)[0], alpha=LOG2_E)

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
            bias = self.rows.new_zeros(()) if self.biases is None else self.biases[index]
            torch.addmm(bias, self.rows, self.transposed[index], alpha=self.rate, out=z)
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
        score = self.source.log_prob(tokens).to(self.dtype) / self.temperature  # (n, V)
        table = score.sub_(score.logsumexp(-1, keepdim=True)).mul_(LOG2_E)
        self.has_impossible = bool((table == -torch.inf).any())
        self.blocks: tuple[Tensor, ...] = table.split(self.width, 1)  # (n, v) each

    def bits(self, index: int) -> Tensor:
        return self.blocks[index].clone()


def lift(bits: Callable[[int, Tensor], Tensor], zero: Tensor, num_blocks: int) -> Tensor:
    """Minus the logsumexp over all columns (..., 1).

    Args:
        bits: a block's logarithms (..., v) plus a tensor (..., 1).
        zero: (..., 1).
    """
    first = bits(0, zero)
    shift = -first.amax(-1, keepdim=True)
    total = first.add_(shift).exp2_().sum(-1, keepdim=True).double()
    for index in range(1, num_blocks):
        total += bits(index, shift).exp2_().sum(-1, keepdim=True)
    if total.isfinite().all():
        return shift.double().sub_(total.log2_()).to(zero.dtype)
    # A later one is larger by more than the exponent can tell, or all before were -inf.
    found = torch.full_like(zero, -torch.inf, dtype=torch.float64)
    for index in range(num_blocks):
        part = bits(index, zero).double().mul_(1 / LOG2_E).logsumexp(-1, keepdim=True)
        found = torch.logaddexp(found, part)
    return found.mul_(-LOG2_E).to(zero.dtype)


def log_sum(joint: Tensor) -> Tensor:
    """The logsumexp over components (n, v) of log-probabilities (n, K, v), some overwritten."""
    total = joint.exp2().sum(1)  # (n, v)
    if total.amin() > SAFE_PROB:
        return total.log2_()
    # The largest may be too small for the exponent, or -inf.
    top = joint.amax(1).clamp_(min=torch.finfo(joint.dtype).min)  # (n, v)
    return joint.sub_(top[:, None]).exp2_().sum(1).log2_().add_(top)
