"""Neural cache: Grave, Joulin and Usunier (2017), arXiv 1612.04426.

Words that followed similar hidden states among the last `window` tokens become likelier:

    p(w) = (1 - λ)·p_model(w) + λ·p_cache(w),  p_cache(w) ∝ Σ_{i < t} [x_{i+1} = w]·exp(θ·h_t·h_i)

h_t predicts x_{t+1}, so only pairs (h_i, x_{i+1}) that were complete before it count.
D hidden size, n tokens of a block, M pairs that one of them may see.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank.evaluation.history import History
from highrank.evaluation.scored import Scored, closed


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    window: int = 2000
    """Tokens that are remembered."""
    flatness: float = 0.3
    """θ: 0 counts all remembered words alike, a large one only those after the likest states."""
    weight: float = 0.1
    """λ: the share of the cache in the mixture."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        if not 0 <= self.flatness < math.inf:
            raise ValueError(f"flatness must be at least 0 and finite, got {self.flatness}")
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight must be at least 0 and below 1, got {self.weight}")


def with_cache(
    segments: Iterable[Scored], settings: CacheSettings
) -> Generator[Scored, None, None]:
    """The same segments, with log-probabilities of the model and the cache together.

    The first token of the text has no past: there the model speaks alone. `segments` is closed
    with this stream.
    """
    history = History(settings.window)
    with closed(segments):
        for segment in segments:
            blocks = [
                mixed(b.log_prob, b.log_cache(settings.window, settings.flatness), settings.weight)
                for b in history.compare(segment)
            ]
            yield segment._replace(log_prob=torch.cat(blocks))


def mixed(log_prob: Tensor, log_cache: Tensor, weight: float) -> Tensor:
    """log((1 - λ)·p_model + λ·p_cache)."""
    if weight == 0:
        return log_prob
    return torch.logaddexp(log_prob + math.log1p(-weight), log_cache + math.log(weight))
