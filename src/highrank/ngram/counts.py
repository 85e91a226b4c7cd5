"""Counts of all n-grams of a text, order by order, by sorting.

A k-gram is its first k - 1 tokens, by their own number, and its last token: one sorted list of
whole numbers for each order. N tokens of the text, V vocabulary, M different k-grams.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer]
Floats = NDArray[np.float64]

# D of counts 1, 2 and more, where an order has too few n-grams to estimate them.
FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Order:
    """The k-grams of a text."""

    key: Integers
    """(M,), ascending: number of the first k - 1 tokens · V + the last token."""
    ids: Integers
    """(N,), the number of the k-gram that ends at each position; -1 where there is none."""
    occurrences: Integers
    """(M,), how often the text has each."""
    count: Integers
    """(M,), c: occurrences in the highest order, else different tokens before it."""
    discounts: Floats
    """D of a count of 0, 1, 2, and of 3 and more."""
    min_count: int
    """Rarer k-grams are pruned: the mass of all of them belongs to the lower order."""

    def kept_mass(self, count: Integers, occurrences: Integers) -> Floats:
        """c - D(c) of k-grams with these counts, 0 of those that are pruned."""
        mass = count - self.discounts[np.minimum(count, 3)]
        return np.where(occurrences >= self.min_count, mass, 0.0)


def count_orders(
    tokens: Integers, vocab_size: int, order: int, min_count: int = 1
) -> tuple[Order, ...]:
    """The k-grams of orders 1 … n.

    Args:
        min_count: k-grams with k > 2 that occur less often are pruned.
    """
    unigram: Integers = np.arange(vocab_size, dtype=np.int64)
    levels: list[tuple[Integers, Integers]] = [(unigram, tokens.astype(np.int32))]
    for k in range(2, order + 1):
        levels.append(_extended(levels[-1][1], tokens, vocab_size, k))
    found: list[Order] = []
    for k, (key, ids) in reversed(list(enumerate(levels, 1))):
        occurrences = _histogram(ids[k - 1 :], len(key))
        count = _preceding(found[-1], ids, k, len(key)) if found else occurrences
        lowest = min_count if k > 2 else 0
        found.append(Order(key, ids, occurrences, count, _discounts(count), lowest))
    return tuple(reversed(found))


def _extended(
    prefix: Integers, tokens: Integers, vocab_size: int, k: int
) -> tuple[Integers, Integers]:
    """Keys and numbers of the k-grams, from the numbers of the (k - 1)-grams."""
    ids = np.full(len(tokens), -1, dtype=np.int32)
    if len(tokens) < k:
        return np.empty(0, np.int64), ids
    key = prefix[k - 2 : -1].astype(np.int64) * vocab_size + tokens[k - 1 :]
    place = np.argsort(key)
    key = key[place]
    is_new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=is_new[1:])
    ids[place + (k - 1)] = np.cumsum(is_new, dtype=np.int32) - 1
    return key[is_new], ids


def _preceding(longer: Order, ids: Integers, k: int, size: int) -> Integers:
    """The number of different tokens before each k-gram; nothing, at the beginning, is one."""
    suffix = np.empty(len(longer.key), dtype=np.int32)
    suffix[longer.ids[k:]] = ids[k:]
    count = _histogram(suffix, size)
    if len(ids) >= k:
        count[ids[k - 1]] += 1
    return count


def _histogram(ids: Integers, size: int) -> Integers:
    return np.bincount(ids, minlength=size).astype(np.int32)


def _discounts(count: Integers) -> Floats:
    """Chen and Goodman's estimates; `FALLBACK` unless all of them exist and 0 < D(c) ≤ c."""
    n1, n2, n3, n4 = (float(np.count_nonzero(count == c)) for c in range(1, 5))
    if min(n1, n2, n3, n4) == 0:
        return np.array((0.0, *FALLBACK))
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_possible = all(0 < d <= c for c, d in enumerate(found, 1))
    return np.array((0.0, *(found if is_possible else FALLBACK)))
