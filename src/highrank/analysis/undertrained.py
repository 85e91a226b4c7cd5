"""Tokens whose output vectors were hardly trained.

Land and Bartolo (2024), "Fishing for Magikarp", arXiv 2405.05417: without the direction that all
vectors share, those of tokens that were never a target lie close together, and near them lie those
that hardly ever were. V vocabulary, E embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

NUM_ITERATIONS = 30
# Cosine distances within which a token counts in any case, and beyond which the tokens that never
# occur have nothing in common.
NEAR, APART = 0.1, 0.5
# A vector is short if it is so many robust standard deviations below the median.
NUM_SPREADS, SPREAD = 5.0, 1.4826


class Closeness(StrEnum):
    """The measure that tokens are found by."""

    DISTANCE = "cosine distance"
    """From the mean of the tokens that never occur."""
    NORM = "norm"


@dataclass(frozen=True, kw_only=True)
class Scores:
    measure: Closeness
    values: Tensor
    """(V,): the smaller, the less trained."""
    limit: float
    """Tokens up to this count as under-trained."""


def undertrained(weight: Tensor, unused: Sequence[int]) -> Scores:
    """Scores of all tokens.

    Args:
        weight: output embedding, (V, E).
        unused: tokens that are known never to occur. Without any, or if their vectors have nothing
            in common, short vectors count.
    """
    weight = weight.detach().float()
    if len(unused):
        rest = _without_shared(weight)
        mean = rest[list(unused)].mean(0)  # (E,)
        distance = 1 - F.cosine_similarity(rest, mean[None], dim=1)  # (V,)
        furthest = distance[list(unused)].max().item()
        if furthest <= APART:
            limit = max(furthest, NEAR)
            return Scores(measure=Closeness.DISTANCE, values=distance, limit=limit)
    norm = weight.norm(dim=1)  # (V,)
    median = norm.median()
    spread = SPREAD * (norm - median).abs().median()
    limit = (median - NUM_SPREADS * spread).item()
    return Scores(measure=Closeness.NORM, values=norm, limit=limit)


def _without_shared(weight: Tensor) -> Tensor:
    """Rows (V, E) without their first principal component, that of the rows as they are."""
    direction = F.normalize(weight.mean(0), dim=0)  # (E,)
    for _ in range(NUM_ITERATIONS):
        direction = F.normalize(weight.T @ (weight @ direction), dim=0)
    return torch.addmm(weight, (weight @ direction)[:, None], direction[None], alpha=-1)
