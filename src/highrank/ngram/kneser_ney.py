"""From a text to an n-gram model, and leave-one-out: the text's own tokens as if new.

What a model has counted it predicts too well. The probability of the token at position i, left out,
is that of counts without this one occurrence. If the n-gram was there once, it is gone, and its
suffix has one preceding token less; if that was its only one, so on in the next lower order. D
stays as it is. All positions are computed at once. N tokens of the text, n order, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.ngram.arrays import blocks, new_array
from highrank.ngram.counts import Floats, Integers, Order, count_orders
from highrank.ngram.table import Table

# Positions that are left out at once: about 100 MB.
LEFT_OUT_BLOCK = 1 << 18


class LeaveOneOut(NamedTuple):
    """The n-gram model at each position of its own text, without that occurrence."""

    token: Integers
    """(N,), the text."""
    log_prob: Floats
    """(N,), of each token after those before it."""
    backoff: NDArray[np.float32]
    """(N, n - 1), γ of the orders 2 … n."""


class NGram(NamedTuple):
    table: Table
    left_out: LeaveOneOut | None
    """None for a model that is not trained any further."""


class _Mass(NamedTuple):
    """Sums over all tokens after a context, by its number."""

    total: Integers
    """C."""
    kept: Floats
    """Σ max(c - D(c), 0)."""


def build(tokens: Integers, vocab_size: int, order: int = 5, min_count: int = 1) -> NGram:
    """The model of a text.

    A text of more than eight million tokens takes about half a gigabyte of memory however long it
    is, and temporary files of 60 to 120 bytes a token.

    Args:
        tokens: (N,), ids below V.
        vocab_size: V.
        order: n; a token is predicted from the n - 1 before it.
        min_count: n-grams of more than two tokens that occur less often are pruned after counting,
            which makes the table small. Probabilities still sum to one.
    """
    tokens = np.asarray(tokens)
    for name, value in (("order", order), ("min_count", min_count), ("vocab_size", vocab_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens must be (N,) whole numbers, got {tokens.dtype} {tokens.shape}")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        found = f"{tokens.min()} to {tokens.max()}"
        raise ValueError(f"tokens must be from 0 to {vocab_size - 1}, got {found}")
    V, orders = vocab_size, count_orders(tokens, vocab_size, order, min_count)
    sizes = [1, *(len(one.key) for one in orders)]
    masses = [_mass(one, size, V) for one, size in zip(orders, sizes, strict=False)]
    return NGram(_table(orders, masses, V), _left_out(tokens, orders, masses, V))


def _mass(order: Order, num_contexts: int, V: int) -> _Mass:
    total, kept = new_array(num_contexts, np.int32), new_array(num_contexts, np.float64)
    for part in blocks(len(order.key)):
        context, count = order.key[part] // V, order.count[part]
        np.add.at(total, context, count)
        np.add.at(kept, context, order.kept_mass(count, order.occurrences[part]))
    return _Mass(total, kept)


def _table(orders: tuple[Order, ...], masses: list[_Mass], V: int) -> Table:
    keys, shares, backoffs = [], [], []
    # The number of each context among those that are kept, and whether it is.
    number, was_kept = np.zeros(1, np.int32), np.ones(1, np.bool_)
    for k, (order, mass) in enumerate(zip(orders, masses, strict=True), 1):
        is_kept = new_array(len(order.key), np.bool_)
        for part in blocks(len(is_kept)):
            is_kept[part] = order.occurrences[part] >= order.min_count
        key, share = _kept(order, mass, number, is_kept, V)
        if k == 1:
            backoff = _backoff(mass.kept, mass.total)
            shares.append(share + backoff / V)
        else:
            keys.append(key)
            shares.append(share)
            backoffs.append(_kept_backoffs(mass, was_kept))
        number, was_kept = new_array(len(is_kept), np.int32), is_kept
        np.cumsum(is_kept, dtype=np.int32, out=number)
        number -= 1
    return Table(tuple(keys), tuple(shares), tuple(backoffs))


def _kept(
    order: Order, mass: _Mass, number: Integers, is_kept: NDArray[np.bool_], V: int
) -> tuple[Integers, Floats]:
    """Keys, with the contexts' new numbers, and shares of the k-grams that are not pruned."""
    size, start = int(np.count_nonzero(is_kept)), 0
    keys, shares = new_array(size, np.int64), new_array(size, np.float64)
    for part in blocks(len(order.key)):
        some = is_kept[part]
        key, count = order.key[part][some], order.count[part][some]
        context, new = key // V, slice(start, start + len(key))
        kept = order.kept_mass(count, order.occurrences[part][some])
        keys[new] = number[context].astype(np.int64) * V + key % V
        shares[new] = kept / np.maximum(mass.total[context], 1)
        start = new.stop
    return keys, shares


def _kept_backoffs(mass: _Mass, was_kept: NDArray[np.bool_]) -> Floats:
    """γ of the contexts that are not pruned."""
    found, start = new_array(int(np.count_nonzero(was_kept)), np.float64), 0
    for part in blocks(len(was_kept)):
        some = was_kept[part]
        values = _backoff(mass.kept[part][some], mass.total[part][some])
        found[start : start + len(values)] = values
        start += len(values)
    result: Floats = found
    return result


def _backoff(kept: Floats, total: Integers) -> Floats:
    """γ of contexts with these sums; 1 if they were never seen."""
    return np.where(total > 0, (total - kept) / np.maximum(total, 1), 1.0)


def _left_out(
    tokens: Integers, orders: tuple[Order, ...], masses: list[_Mass], V: int
) -> LeaveOneOut:
    token, log_prob = orders[0].ids, new_array(len(tokens), np.float64)
    backoff = new_array(len(tokens), np.float32, columns=len(orders) - 1)
    for part in blocks(len(tokens), LEFT_OUT_BLOCK):
        log_prob[part] = _left_out_block(orders, masses, V, part, backoff[part])
    return LeaveOneOut(token, log_prob, backoff)


def _left_out_block(
    orders: tuple[Order, ...],
    masses: list[_Mass],
    V: int,
    part: slice,
    backoff: NDArray[np.float32],
) -> Floats:
    """log p of these positions; fills in γ."""
    loses = _lost_counts(orders, part)
    prob = np.full(part.stop - part.start, 1 / V)
    for k, (order, mass, lost) in enumerate(zip(orders, masses, loses, strict=True), 1):
        gamma = np.ones(len(prob))
        # All positions but those at the beginning, which have no k-gram.
        there = slice(max(0, k - 1 - part.start), None)
        ids, lost = order.ids[part][there], lost[there]
        count, occurrences = order.count[ids], order.occurrences[ids]
        context = order.key[ids] // V
        total = mass.total[context] - lost
        share = order.kept_mass(count - lost, occurrences - 1)
        kept = mass.kept[context] - order.kept_mass(count, occurrences) + share
        gamma[there] = _backoff(kept, total)
        prob *= gamma
        prob[there] += share / np.maximum(total, 1)
        if k > 1:
            backoff[:, k - 2] = gamma
    return np.log(prob)


def _lost_counts(orders: tuple[Order, ...], part: slice) -> list[NDArray[np.bool_]]:
    """Whether the k-gram that ends at a position has one count less without it, by order."""
    n, position = len(orders), np.arange(part.start, part.stop)
    lost, found = np.zeros(len(position), dtype=np.bool_), []
    for k in range(n, 0, -1):
        order, ids = orders[k - 1], orders[k - 1].ids[part]
        # The highest order that has an n-gram there: at the beginning, that of the whole text.
        lost = lost | (np.minimum(n, position + 1) == k)
        found.append(lost)
        if len(order.key):
            lost = lost & (ids >= 0) & (order.count[ids] == 1)
    return found[::-1]
