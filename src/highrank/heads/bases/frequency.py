"""Tokens by frequency, and how many of them are worth a column of the first softmax.

Costs count the multiplies of the loss, in units of one softmax over the whole vocabulary. K
components, V vocabulary, R frequent tokens.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def frequency_order(counts: Sequence[int] | None, vocab_size: int) -> NDArray[np.int64]:
    """Token ids (V,), the most frequent first; without counts, ids are taken to be in order.

    Args:
        counts: how often the training split has each token.
    """
    if counts is None:
        return np.arange(vocab_size)
    if len(counts) != vocab_size:
        raise ValueError(f"token_counts must have {vocab_size} numbers, got {len(counts)}")
    return np.argsort(-np.asarray(counts, dtype=np.int64), kind="stable")


def log_frequencies(counts: Sequence[int], vocab_size: int) -> Tensor:
    """(V,) in float64, normalised; each token is counted once more, so that all are possible."""
    if len(counts) != vocab_size:
        raise ValueError(f"token_counts must have {vocab_size} numbers, got {len(counts)}")
    return (torch.tensor(counts, dtype=torch.float64) + 1).log().log_softmax(0)


def tail_starts(frequent: int, cutoffs: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """The rank at which each tail begins, R first; empty if all tokens are frequent."""
    if not 1 <= frequent <= vocab_size:
        raise ValueError(f"frequent must be from 1 to {vocab_size}, or auto, got {frequent}")
    if frequent == vocab_size and not cutoffs:
        return ()
    starts = (frequent, *cutoffs)
    if any(a >= b for a, b in pairwise((0, *starts, vocab_size))):
        raise ValueError(
            f"cutoffs must rise from above 0 to below {vocab_size}, got {list(starts)}"
        )
    return starts


def costs(
    counts: Sequence[int] | None,
    vocab_size: int,
    num_components: int,
    tail_cost: float = 1.0,
) -> NDArray[np.float64]:
    """The cost (V,) of K softmaxes over R frequent tokens and a tail of the others, R = 1 … V.

        (K · (R + 1) + (V - R) · tail_cost · fraction of tokens that are in the tail) / V

    Args:
        counts: how often the training split has each token; None assumes Zipf's law.
        tail_cost: the cost of a column of the tail, relative to one of the first softmax.
    """
    V = vocab_size
    if counts is None or not any(counts):
        frequency = 1.0 / np.arange(1, V + 1)
    else:
        frequency = np.asarray(counts, dtype=np.float64)[frequency_order(counts, V)]
    covered = frequency.cumsum() / frequency.sum()  # (V,)
    R = np.arange(1, V + 1)
    tail = (V - R) * tail_cost * (1.0 - covered)
    # With all tokens frequent there is no tail, nor a column for it.
    head = num_components * np.where(R < V, R + 1, R)
    found: NDArray[np.float64] = (head + tail) / V
    return found


def best_frequent(
    counts: Sequence[int] | None, vocab_size: int, num_components: int, tail_cost: float
) -> int:
    """The R of least cost; for several softmaxes the largest R that costs no more than one."""
    cost = costs(counts, vocab_size, num_components, tail_cost)
    affordable = np.flatnonzero(cost <= 1.0)
    if num_components == 1 or not len(affordable):
        return int(cost.argmin()) + 1
    return int(affordable[-1]) + 1
