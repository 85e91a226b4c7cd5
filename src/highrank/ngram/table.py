"""Probabilities of an n-gram model: of given tokens, and of all tokens after a context.

Everything is looked up by binary search, for many contexts at once. A context of each length has
a number; -1 stands for one that was never seen, or that reaches beyond the text's beginning.
n order, V vocabulary, M different k-grams, T time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.ngram.counts import Floats, Integers


@dataclass(frozen=True)
class TableSize:
    """What a table adds to the parameters of a model."""

    num_ngrams: int
    """Of all orders."""
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.num_ngrams / 1e6:,.2f} M n-grams, {self.num_bytes / 1e6:,.0f} MB"


@dataclass(frozen=True)
class Table:
    """An interpolated n-gram model over V tokens."""

    keys: tuple[Integers, ...]
    """Of the k-grams of orders 2 … n, (M,), ascending: number of the context · V + token."""
    shares: tuple[Floats, ...]
    """Of orders 1 … n, (M,): (c - D) / C; p itself of order 1."""
    backoffs: tuple[Floats, ...]
    """Of orders 2 … n: γ of each context, by its number."""

    @property
    def order(self) -> int:
        return len(self.shares)

    @property
    def vocab_size(self) -> int:
        return len(self.shares[0])

    @property
    def size(self) -> TableSize:
        parts = (*self.keys, *self.shares, *self.backoffs)
        return TableSize(sum(map(len, self.shares)), sum(part.nbytes for part in parts))

    def contexts(self, tokens: Integers) -> Integers:
        """The numbers (n, T, ...) of the contexts of 0 … n - 1 tokens that end at each time.

        Args:
            tokens: (T, ...), -1 where there is none.
        """
        found = np.full((self.order, *tokens.shape), -1, dtype=np.int64)
        found[0] = 0
        if self.order > 1:
            found[1] = np.where(self._is_token(tokens), tokens, -1)
        for k in range(2, self.order):
            found[k, 1:] = self._find(k, found[k - 1, :-1], tokens[1:])
        return found

    def log_prob_of(self, contexts: Integers, target: Integers) -> Floats:
        """log p of the targets (...) after contexts (n, ...); anything for those that are none."""
        prob = self.shares[0][np.clip(target, 0, self.vocab_size - 1)]
        backoff = self.backoff(contexts)
        for k in range(2, self.order + 1):
            share = _at(self.shares[k - 1], self._find(k, contexts[k - 1], target), 0.0)
            prob = share + backoff[..., k - 2] * prob
        return _log(prob)

    def log_prob(self, contexts: Integers) -> Floats:
        """log p of every token (..., V) after contexts (n, ...)."""
        shape, contexts = contexts.shape[1:], contexts.reshape(self.order, -1)
        prob = np.repeat(self.shares[0][None], contexts.shape[1], 0)
        backoff = self.backoff(contexts)
        for k in range(2, self.order + 1):
            prob *= backoff[:, k - 2 : k - 1]
            rows, places = self._children(k, contexts[k - 1])
            prob[rows, self.keys[k - 2][places] % self.vocab_size] += self.shares[k - 1][places]
        return _log(prob).reshape(*shape, self.vocab_size)

    def backoff(self, contexts: Integers) -> Floats:
        """γ of the orders 2 … n, (..., n - 1), after contexts (n, ...)."""
        found = [_at(g, contexts[k], 1.0) for k, g in enumerate(self.backoffs, 1)]
        return np.stack(found, -1) if found else np.empty((*contexts.shape[1:], 0))

    def score(self, tokens: Integers) -> Floats:
        """log p of each token of a text but the first, (T - 1,), after those before it."""
        tokens = np.asarray(tokens, dtype=np.int64)
        return self.log_prob_of(self.contexts(tokens[:-1]), tokens[1:])

    def _find(self, k: int, context: Integers, token: Integers) -> Integers:
        """Numbers of the k-grams of these contexts and tokens, -1 if there is none."""
        keys = self.keys[k - 2]
        if len(keys) == 0:
            return np.full(context.shape, -1)
        wanted = np.where(self._is_token(token) & (context >= 0), self._key(context, token), -1)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, place, -1)

    def _children(self, k: int, context: Integers) -> tuple[Integers, Integers]:
        """Which of the contexts (m,), and the number, of each k-gram that begins with one."""
        keys = self.keys[k - 2]
        first = np.searchsorted(keys, self._key(context, np.int64(0)))
        last = np.searchsorted(keys, self._key(context + 1, np.int64(0)))
        size = np.where(context >= 0, last - first, 0)
        rows = np.repeat(np.arange(len(context)), size)
        before = np.repeat(np.cumsum(size) - size, size)
        return rows, np.repeat(first, size) + np.arange(len(rows)) - before

    def _key(self, context: Integers, token: Any) -> Integers:
        found: Integers = context.astype(np.int64) * self.vocab_size + token
        return found

    def _is_token(self, token: Integers) -> NDArray[np.bool_]:
        return (token >= 0) & (token < self.vocab_size)


def _at(values: Floats, ids: Integers, default: float) -> Floats:
    """The values of these numbers, the default for -1."""
    if len(values) == 0:
        return np.full(ids.shape, default)
    return np.where(ids >= 0, values[np.maximum(ids, 0)], default)


def _log(prob: Floats) -> Floats:
    """No probability is 0 but by underflow: then its log is that of the smallest number."""
    return np.log(np.maximum(prob, np.finfo(np.float64).tiny))
