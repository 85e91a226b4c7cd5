"""Counts of all n-grams of a text, order by order, by sorting.

A k-gram is its first k - 1 tokens, by their own number, and its last token: one sorted list of
whole numbers for each order. A long text is sorted in ranges of these numbers, each of which fits
into memory, and everything as long as the text is a file (`arrays.py`). N tokens of the text, V
vocabulary, M different k-grams.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from highrank.ngram import arrays
from highrank.ngram.arrays import blocks, new_array

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


@dataclass(frozen=True)
class _Level:
    """The k-grams of a text, without Kneser and Ney's counts."""

    key: Integers
    ids: Integers
    occurrences: Integers


def count_orders(
    tokens: Integers, vocab_size: int, order: int, min_count: int = 1
) -> tuple[Order, ...]:
    """The k-grams of orders 1 … n.

    Args:
        min_count: k-grams with k > 2 that occur less often are pruned.
    """
    levels = [_unigrams(tokens, vocab_size)]
    for k in range(2, order + 1):
        levels.append(_extended(levels[-1], tokens, vocab_size, k))
    found: list[Order] = []
    for k, level in reversed(list(enumerate(levels, 1))):
        count = _preceding(found[-1], level, k) if found else level.occurrences
        lowest = min_count if k > 2 else 0
        found.append(
            Order(level.key, level.ids, level.occurrences, count, _discounts(count), lowest)
        )
    return tuple(reversed(found))


def _unigrams(tokens: Integers, vocab_size: int) -> _Level:
    ids, occurrences = new_array(len(tokens), np.int32), np.zeros(vocab_size, np.int32)
    for part in blocks(len(tokens)):
        ids[part] = tokens[part]
        occurrences += np.bincount(ids[part], minlength=vocab_size).astype(np.int32)
    return _Level(np.arange(vocab_size, dtype=np.int64), ids, occurrences)


def _extended(prefix: _Level, tokens: Integers, vocab_size: int, k: int) -> _Level:
    """The k-grams, from the (k - 1)-grams."""
    num_grams = max(0, len(tokens) - k + 1)
    ids = new_array(len(tokens), np.int32)
    ids[:] = -1
    key, occurrences = new_array(num_grams, np.int64), new_array(num_grams, np.int32)
    num_keys = 0
    for first, last in _ranges(prefix.occurrences):
        # The last k-gram ends at the last token: the (k - 1)-gram there has none.
        place = _places(prefix.ids[:-1], first, last)
        found = prefix.ids[place].astype(np.int64) * vocab_size + tokens[place + 1]
        order = np.argsort(found)
        found = found[order]
        is_new = np.ones(len(found), dtype=np.bool_)
        np.not_equal(found[1:], found[:-1], out=is_new[1:])
        ids[place[order] + 1] = num_keys - 1 + np.cumsum(is_new, dtype=np.int32)
        start = np.flatnonzero(is_new)
        new = slice(num_keys, num_keys + len(start))
        key[new], occurrences[new] = found[start], np.diff(start, append=len(found))
        num_keys = new.stop
    return _Level(key[:num_keys], ids, occurrences[:num_keys])


def _ranges(occurrences: Integers) -> Iterator[tuple[int, int]]:
    """Ranges of numbers that together occur about `BLOCK` times."""
    first, total, size = 0, 0, len(occurrences)
    for part in blocks(size):
        reached = total + np.cumsum(occurrences[part], dtype=np.int64)
        while len(reached) and reached[-1] >= arrays.BLOCK:
            last = part.start + int(np.searchsorted(reached, arrays.BLOCK)) + 1
            yield first, last
            first, done = last, reached[last - part.start - 1]
            part = slice(last, part.stop)
            reached = reached[len(reached) - (part.stop - last) :] - done
        total = int(reached[-1]) if len(reached) else 0
    if first < size:
        yield first, size


def _places(ids: Integers, first: int, last: int) -> Integers:
    """Positions whose number lies in a range."""
    found = [np.empty(0, np.int64)]
    for part in blocks(len(ids)):
        some = np.asarray(ids[part])
        found.append(np.flatnonzero((some >= first) & (some < last)) + part.start)
    return np.concatenate(found)


def _preceding(longer: Order, level: _Level, k: int) -> Integers:
    """The number of different tokens before each k-gram; nothing, at the beginning, is one."""
    ids = level.ids
    count: Integers = new_array(len(level.key), np.int32)
    for part in blocks(len(longer.key)):
        # The k-gram at the end of each of these (k + 1)-grams, wherever it stands.
        suffix = np.empty(part.stop - part.start, dtype=np.int32)
        for some in blocks(len(ids)):
            place = _places(longer.ids[some], part.start, part.stop)
            suffix[longer.ids[some][place] - part.start] = ids[some][place]
        np.add.at(count, suffix, 1)
    if len(ids) >= k:
        count[ids[k - 1]] += 1
    return count


def _discounts(count: Integers) -> Floats:
    """Chen and Goodman's estimates; `FALLBACK` unless all of them exist and 0 < D(c) ≤ c."""
    numbers = np.zeros(5)
    for part in blocks(len(count)):
        numbers += np.bincount(np.minimum(count[part], 5), minlength=6)[:5]
    n1, n2, n3, n4 = numbers[1:]
    if min(n1, n2, n3, n4) == 0:
        return np.array((0.0, *FALLBACK))
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_possible = all(0 < d <= c for c, d in enumerate(found, 1))
    return np.array((0.0, *(found if is_possible else FALLBACK)))
