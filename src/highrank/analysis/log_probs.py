"""Where log-probabilities come from: blocks of rows, made again for every pass over them.

T contexts, V words, n rows of a block, D hidden size.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank.heads import Head

BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class LogProbs:
    """A T×V matrix of log-probabilities that nobody holds."""

    num_contexts: int
    """T."""
    vocab_size: int
    """V."""
    precision: torch.dtype
    """In which the numbers were made. Their own dtype says nothing: bfloat16 logits stay coarse
    when they are turned into float32."""
    make_blocks: Callable[[], Iterable[Tensor]]
    """Starts a pass over the rows, in order: tensors (n, V), of any n."""

    def blocks(self) -> Iterator[Tensor]:
        """The rows (n, V), checked: as many as promised, and finite."""
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
    """The rows of a matrix (T, V) that is at hand.

    Args:
        precision: in which it was made; that of its dtype if None.
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


def head_log_probs(head: Head, hidden: Tensor, precision: torch.dtype = torch.float64) -> LogProbs:
    """log p of every word, recomputed by a copy of the head in this precision.

    Parameters and hidden states are taken as they are: going up from bfloat16 is exact.

    Args:
        hidden: (T, D).
        precision: float64 for a certified rank, float32 for what others have measured.
    """
    if hidden.dim() != 2 or hidden.numel() == 0:
        raise ValueError(f"hidden must be (T, D) and not empty, got {tuple(hidden.shape)}")
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision}")
    twin = copy.deepcopy(head).to(precision).eval()

    @torch.no_grad()
    def make_blocks() -> Iterator[Tensor]:
        for rows in hidden.split(block_rows(head.vocab_size)):  # (n, D)
            yield twin.log_prob(rows.to(precision))  # (n, V)

    return LogProbs(
        num_contexts=len(hidden),
        vocab_size=head.vocab_size,
        precision=precision,
        make_blocks=make_blocks,
    )


def sampled(
    source: LogProbs,
    *,
    num_contexts: int | None = None,
    num_words: int | None = None,
    seed: int = 0,
) -> LogProbs:
    """Some rows and columns, drawn without replacement; their rank is at most that of the whole.

    Args:
        num_contexts: how many rows; all if None.
        num_words: how many columns; all if None. The rows then no longer sum to one.
    """
    random = torch.Generator().manual_seed(seed)
    rows = _drawn("num_contexts", num_contexts, source.num_contexts, random)
    words = _drawn("num_words", num_words, source.vocab_size, random)

    def make_blocks() -> Iterator[Tensor]:
        start = 0
        for block in source.blocks():
            here = rows[(rows >= start) & (rows < start + len(block))] - start
            start += len(block)
            if len(here):
                yield block[here.to(block.device)][:, words.to(block.device)]

    return LogProbs(
        num_contexts=len(rows),
        vocab_size=len(words),
        precision=source.precision,
        make_blocks=make_blocks,
    )


def _drawn(name: str, count: int | None, total: int, random: torch.Generator) -> Tensor:
    """So many of 0 … total-1, in order."""
    if count is None:
        return torch.arange(total)
    if not 1 <= count <= total:
        raise ValueError(f"{name} must be from 1 to {total}, got {count}")
    return torch.randperm(total, generator=random)[:count].sort().values


def block_rows(vocab_size: int) -> int:
    return max(1, BLOCK_BYTES // (8 * vocab_size))
