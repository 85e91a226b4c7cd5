"""Log-probabilities as blocks of rows, computed again for every pass over them.

T contexts, V tokens, n rows of a block, D hidden size.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from highrank.heads import Head

BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class LogProbs:
    """A T×V matrix of log-probabilities that is never held as a whole."""

    num_contexts: int
    """T."""
    vocab_size: int
    """V."""
    precision: torch.dtype
    """In which the numbers were computed. It may be coarser than their dtype: bfloat16 logits stay
    coarse when they are converted to float32."""
    make_blocks: Callable[[], Iterable[Tensor]]
    """Starts a pass over the rows, in order: tensors (n, V), of any n."""

    def blocks(self) -> Iterator[Tensor]:
        """The rows (n, V), checked: T in all, and finite."""
        row = 0
        for block in self.make_blocks():
            if block.dim() != 2 or block.shape[1] != self.vocab_size:
                raise ValueError(
                    f"a block must be (n, {self.vocab_size}), got {tuple(block.shape)}"
                )
            if not block.isfinite().all():
                bad = row + int((~block.isfinite()).any(1).nonzero()[0])
                raise ValueError(f"log-probabilities must be finite, got others in row {bad}")
            row += len(block)
            if row > self.num_contexts:
                break
            yield block
        if row != self.num_contexts:
            found = "more" if row > self.num_contexts else row
            raise ValueError(f"the blocks must have {self.num_contexts} rows in all, got {found}")


def matrix_log_probs(matrix: Tensor, precision: torch.dtype | None = None) -> LogProbs:
    """The rows of a matrix (T, V) in memory.

    Args:
        precision: in which it was computed; its dtype if None.
    """
    if matrix.dim() != 2 or matrix.numel() == 0:
        raise ValueError(f"matrix must be (T, V) and not empty, got {tuple(matrix.shape)}")
    num_contexts, vocab_size = matrix.shape
    return LogProbs(
        num_contexts=num_contexts,
        vocab_size=vocab_size,
        precision=precision or matrix.dtype,
        make_blocks=lambda: matrix.split(block_rows(vocab_size)),
    )


def head_log_probs(
    head: Head, hidden: Tensor, precision: torch.dtype = torch.float64, *, min_rows: int = 1
) -> LogProbs:
    """log p of every token, recomputed by a copy of the head in this precision.

    Parameters and hidden states are converted to it, which is exact from bfloat16.

    Args:
        hidden: (T, D).
        precision: float64 for the numerical rank of float64, or float32.
        min_rows: of a block, at least.
    """
    if hidden.dim() != 2 or hidden.numel() == 0:
        raise ValueError(f"hidden must be (T, D) and not empty, got {tuple(hidden.shape)}")
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision}")
    twin = copy.deepcopy(head).to(precision).eval()

    @torch.no_grad()
    def make_blocks() -> Iterator[Tensor]:
        for rows in hidden.split(max(min_rows, block_rows(head.vocab_size))):  # (n, D)
            yield twin.log_prob(rows.to(precision))  # (n, V)

    return LogProbs(
        num_contexts=len(hidden),
        vocab_size=head.vocab_size,
        precision=precision,
        make_blocks=make_blocks,
    )


def sampled(source: LogProbs, num_tokens: int, seed: int = 0) -> LogProbs:
    """Some columns, drawn without replacement: their rank is at most that of the whole.

    The rows no longer sum to one.
    """
    if not 1 <= num_tokens <= source.vocab_size:
        raise ValueError(f"num_tokens must be from 1 to {source.vocab_size}, got {num_tokens}")
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(source.vocab_size, generator=random)[:num_tokens].sort().values

    def make_blocks() -> Iterator[Tensor]:
        for block in source.blocks():
            yield block[:, tokens.to(block.device)]

    return replace(source, vocab_size=num_tokens, make_blocks=make_blocks)


def block_rows(vocab_size: int) -> int:
    """How many rows a block has."""
    return max(1, BLOCK_BYTES // (8 * vocab_size))
