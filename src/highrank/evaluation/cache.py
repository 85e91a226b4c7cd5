"""Neural cache: Grave, Joulin and Usunier (2017), arXiv 1612.04426.

Tokens that followed similar hidden states among the last `window` tokens become likelier:

    p(w) = (1 - λ)·p_model(w) + λ·p_cache(w),  p_cache(w) ∝ Σ_{i < t} [x_{i+1} = w]·exp(θ·h_t·h_i)

h_t predicts x_{t+1}, so only pairs (h_i, x_{i+1}) that were complete before it count. A block of
tokens is compared at a time, without a loop. D hidden size, n tokens of a block, M pairs that one
of them may see.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.evaluation.static import Scored, closed
from highrank.ops.precision import at_least_float32


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    window: int = 2000
    """Tokens that are remembered."""
    theta: float = 0.3
    """θ: 0 counts all remembered tokens alike, a large one only those after the likest states."""
    weight: float = 0.1
    """λ: the weight of the cache in the mixture."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        if not 0 <= self.theta < math.inf:
            raise ValueError(f"theta must be at least 0 and finite, got {self.theta}")
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight must be at least 0 and below 1, got {self.weight}")


def with_cache(
    segments: Iterable[Scored], settings: CacheSettings
) -> Generator[Scored, None, None]:
    """The same segments, with log-probabilities of the model and the cache together.

    The first token has no past: its probability is the model's. `segments` is closed with this
    stream.
    """
    history = History(settings.window)
    with closed(segments):
        for segment in segments:
            blocks = [
                mix(b.log_prob, b.log_cache(settings.window, settings.theta), settings.weight)
                for b in history.compare(segment)
            ]
            yield segment._replace(log_prob=torch.cat(blocks))


def mix_all(
    log_prob: Tensor, segment: Scored, history: "History", settings: CacheSettings
) -> Tensor:
    """The model's log-probabilities of all tokens (n, V) at a segment, mixed with the cache's."""
    parts, start = [], 0
    for block in history.compare(segment):
        end = start + len(block.log_prob)
        parts.append(block.with_all_tokens(log_prob[start:end], settings))
        start = end
    return torch.cat(parts)


def mix(log_prob: Tensor, log_cache: Tensor, weight: float) -> Tensor:
    """log((1 - λ)·p_model + λ·p_cache)."""
    if weight == 0:
        return log_prob
    return torch.logaddexp(log_prob + math.log1p(-weight), log_cache + math.log(weight))


# Numbers in a block's table of similarities: 16 MiB.
TABLE_SIZE = 1 << 22


class Block(NamedTuple):
    """Tokens compared with the pairs (hidden state, next token) before them, and with their own."""

    log_prob: Tensor
    """(n,), the model's, of each target."""
    similarity: Tensor
    """(n, M), h_t·h_i; the last n are the block's own pairs."""
    is_target: Tensor
    """(n, M), whether the pair's token is the target."""
    tokens: Tensor
    """(M,), of the pairs."""

    def log_cache(self, window: int, theta: float) -> Tensor:
        """log p_cache of each target (n,), from the last `window` pairs that are complete.

        The first token of a stream has none: p_cache is the model's probability there.
        """
        z, columns = self._scaled(window, theta)
        total = z.logsumexp(-1)  # (n,)
        of_target = z.masked_fill_(~self.is_target[:, columns], -torch.inf).logsumexp(-1)  # (n,)
        log_cache = (of_target - total).to(self.log_prob.dtype)
        return torch.where(total == -torch.inf, self.log_prob, log_cache)

    def with_all_tokens(self, log_prob: Tensor, settings: CacheSettings) -> Tensor:
        """The model's log-probabilities of all tokens (n, V), mixed with the cache's."""
        z, columns = self._scaled(settings.window, settings.theta)
        total = z.logsumexp(-1, keepdim=True)  # (n, 1)
        p_cache = torch.zeros_like(log_prob, dtype=z.dtype)  # (n, V)
        p_cache.index_add_(1, self.tokens[columns], (z - total).exp())
        log_cache = p_cache.log().to(log_prob.dtype)
        # As in `log_cache`, the first token of a stream has no past.
        log_cache = torch.where(total == -torch.inf, log_prob, log_cache)
        return mix(log_prob, log_cache, settings.weight)

    def _scaled(self, window: int, theta: float) -> tuple[Tensor, slice]:
        """θ·h_t·h_i (n, num_before + n), -inf where the pair is not seen, and which pairs."""
        n, M = self.similarity.shape
        num_before = min(window, M - n)
        columns = slice(M - n - num_before, None)
        z = theta * self.similarity[:, columns]  # (n, num_before + n)
        # Token r sees the columns num_before + r - window … num_before + r - 1.
        seen = torch.ones_like(z, dtype=torch.bool).tril_(num_before - 1)
        seen.triu_(num_before - window)
        return z.masked_fill_(~seen, -torch.inf), columns


class History:
    """The last pairs of a stream: `window` of them before each block of tokens."""

    def __init__(self, window: int) -> None:
        self.window = window
        # A block computes n more columns than it needs; a very short one wastes the multiply.
        self.block = max(1, min(max(32, window // 8), TABLE_SIZE // window))
        self.pairs: tuple[Tensor, Tensor] | None = None

    def compare(self, segment: Scored) -> Iterator[Block]:
        """Compare the segment's tokens with the past, and remember them."""
        for start in range(0, len(segment.target), self.block):
            part = Scored(*(tensor[start : start + self.block] for tensor in segment))
            hidden = part.hidden.to(at_least_float32(part.hidden.dtype))  # (n, D)
            memory, tokens = self._remember(hidden, part.target)  # (M, D), (M,)
            is_target = part.target[:, None] == tokens  # (n, M)
            yield Block(part.log_prob, hidden @ memory.T, is_target, tokens)

    def _remember(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """All pairs that one of these new ones may see, with the new ones as the last."""
        if self.pairs is not None:
            old_hidden, old_target = (part[-self.window :] for part in self.pairs)
            hidden, target = torch.cat((old_hidden, hidden)), torch.cat((old_target, target))
        self.pairs = hidden, target
        return hidden, target
