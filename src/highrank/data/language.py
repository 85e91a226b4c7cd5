"""A language whose distribution P* is a table: what a model loses to it is computed, not estimated.

It walks over contexts: in context c it says word v with probability P*(v | c) and moves to
`next_context[c, v]`. C contexts, V words, B chains, T tokens of a chain.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# How far the probabilities of a context may be from summing to one; models may be float32.
LANGUAGE_TOLERANCE = 1e-10
MODEL_TOLERANCE = 1e-4

# One step in eight stays in place: enough to make a periodic walk converge, few enough to be fast.
LAZINESS = 1 / 8
STATIONARY_TOLERANCE = 1e-14
MAX_STEPS = 20_000


class Stream(NamedTuple):
    """Independent walks through a language, one per row; tokens[b, t] is said in contexts[b, t]."""

    tokens: Integers
    contexts: Integers


@dataclass(frozen=True, eq=False)
class Language:
    """A next-word distribution for each context, and the context that each word leads to.

    Args:
        log_prob: log P*(v | c), float64, (C, V); -inf for a word that the context rules out.
        next_context: context after word v in context c, any integer type, (C, V). Every context
            must be reachable from every other through possible words.
    """

    log_prob: Floats
    next_context: Integers

    def __post_init__(self) -> None:
        if self.log_prob.ndim != 2 or self.log_prob.size == 0:
            raise ValueError(f"log_prob must be (contexts, words), got {self.log_prob.shape}")
        if self.log_prob.dtype != np.float64:
            raise ValueError(f"log_prob must be float64, got {self.log_prob.dtype}")
        _check_normalised(self.log_prob, LANGUAGE_TOLERANCE)
        _check_transition(self.next_context, self.log_prob.shape)
        object.__setattr__(self, "next_context", self.next_context.astype(np.int64, copy=False))
        _check_connected(self.prob > 0, self.next_context)

    @property
    def num_contexts(self) -> int:
        return len(self.log_prob)

    @property
    def vocab_size(self) -> int:
        return int(self.log_prob.shape[1])

    @cached_property
    def prob(self) -> Floats:
        """P*(v | c), (C, V)."""
        return np.exp(self.log_prob)

    @cached_property
    def stationary(self) -> Floats:
        """Long-run frequency of each context, (C,): μ = μT, to 1e-14 in the sum of |μ - μT|."""
        target = self.next_context.ravel()  # (C·V,)
        frequency = np.full(self.num_contexts, 1 / self.num_contexts)
        for _ in range(MAX_STEPS):
            flow = (frequency[:, None] * self.prob).ravel()  # (C·V,)
            arrived = np.bincount(target, weights=flow, minlength=self.num_contexts)  # (C,)
            moved: Floats = arrived / arrived.sum()
            change = np.abs(moved - frequency).sum()
            if change <= STATIONARY_TOLERANCE:
                return moved
            frequency = LAZINESS * frequency + (1 - LAZINESS) * moved
        raise ValueError(f"contexts must mix in {MAX_STEPS} steps, got a last change of {change}")

    @cached_property
    def entropy(self) -> float:
        """Σ_c μ_c H(P*(· | c)), the entropy rate in nats per token: no cross-entropy is lower."""
        return self._mean(-self.log_prob)

    def cross_entropy(self, log_prob: Floats) -> float:
        """-Σ_c μ_c Σ_v P*(v | c) log P(v | c), in nats per token.

        Args:
            log_prob: log P(v | c) of a model, normalised, (C, V). If it rules out a word that the
                language may say, the cross-entropy is inf.
        """
        self._check_model(log_prob)
        return self._mean(-log_prob)

    def excess(self, log_prob: Floats) -> float:
        """Σ_c μ_c KL(P*(· | c) ‖ P(· | c)): cross-entropy minus entropy, without cancellation."""
        self._check_model(log_prob)
        # -inf minus -inf is the NaN of a word that both rule out; the mean leaves it out.
        with np.errstate(invalid="ignore"):
            return self._mean(self.log_prob - log_prob)

    def sample(self, num_tokens: int, seed: int, *, num_chains: int = 256) -> Stream:
        """Tokens and contexts, int64, (B, T), of B independent chains, stationary from the start.

        Every chain is T = ⌈num_tokens / num_chains⌉ tokens long: at least num_tokens come back, and
        fewer than num_chains too many. The mean of a row is unbiased and independent of the others;
        the rows are a batch to train on, or, end to end, one stream with a seam every T tokens.

        Args:
            num_tokens: in all chains together.
            seed: of `numpy.random.default_rng`; the same seed gives the same stream.
            num_chains: B. More are faster, fewer have fewer seams.
        """
        for name, size in (("num_tokens", num_tokens), ("num_chains", num_chains)):
            if size < 1:
                raise ValueError(f"{name} must be positive, got {size}")
        rng = default_rng(seed)
        target = self.next_context.ravel()  # (C·V,)
        edges = self._edges()  # (C·V,)
        flat = np.empty((-(-num_tokens // num_chains), num_chains), dtype=np.int64)  # (T, B)
        context = rng.choice(self.num_contexts, size=num_chains, p=self.stationary)  # (B,)
        for step in flat:
            point = np.minimum(context + rng.random(num_chains), np.nextafter(context + 1.0, 0.0))
            step[:] = edges.searchsorted(point, side="right")
            context = target[step]
        contexts, tokens = np.divmod(np.ascontiguousarray(flat.T), self.vocab_size)  # (B, T)
        return Stream(tokens, contexts)

    def _edges(self) -> Floats:
        """c + Σ_{w ≤ v} P*(w | c), ascending, (C·V,): the first edge above c + u is the word drawn.

        The last edge of a context is c + 1 exactly, and an impossible word repeats the edge before
        it: whatever rounding does (1e-11 at C = 40,000), no impossible word is ever drawn.
        """
        cumulative = self.prob.cumsum(axis=1)
        cumulative /= cumulative[:, -1:]
        cumulative += np.arange(self.num_contexts)[:, None]
        return cumulative.ravel()

    def _mean(self, value: Floats) -> float:
        """Long-run mean of value (C, V); what never happens does not count, not even as NaN."""
        joint = self.stationary[:, None] * self.prob
        return float((joint * np.where(joint > 0, value, 0.0)).sum())

    def _check_model(self, log_prob: Floats) -> None:
        if log_prob.shape != self.log_prob.shape:
            raise ValueError(f"log_prob must be {self.log_prob.shape}, got {log_prob.shape}")
        _check_normalised(log_prob, MODEL_TOLERANCE)


def _check_normalised(log_prob: Floats, tolerance: float) -> None:
    largest = log_prob.max()
    if not largest <= tolerance:
        raise ValueError(f"log_prob must be at most 0 everywhere, got {largest}")
    total = np.exp(log_prob).sum(axis=1)  # (C,)
    worst = np.abs(total - 1).argmax()
    if abs(total[worst] - 1) > tolerance:
        raise ValueError(f"probabilities must sum to 1, got {total[worst]} in context {worst}")


def _check_transition(next_context: Integers, shape: tuple[int, ...]) -> None:
    if next_context.shape != shape:
        raise ValueError(f"next_context must be {shape} as log_prob, got {next_context.shape}")
    if not np.issubdtype(next_context.dtype, np.integer):
        raise ValueError(f"next_context must hold integers, got {next_context.dtype}")
    low, high = next_context.min(), next_context.max()
    if low < 0 or high >= shape[0]:
        raise ValueError(f"next_context must be from 0 to {shape[0] - 1}, got {low} to {high}")


def _check_connected(possible: NDArray[np.bool_], next_context: Integers) -> None:
    source, target = np.nonzero(possible)[0], next_context[possible]  # (edges,)
    num_contexts = len(possible)
    for start, end, verb in ((source, target, "reachable from"), (target, source, "able to reach")):
        seen = _reachable(start, end, num_contexts)
        if not seen.all():
            raise ValueError(
                f"every context must be {verb} context 0 through possible words, "
                f"got {num_contexts - seen.sum()} that are not, such as context {seen.argmin()}"
            )


def _reachable(source: Integers, target: Integers, num_contexts: int) -> NDArray[np.bool_]:
    """Whether a walk along the edges source → target gets from context 0 to each context, (C,)."""
    edges = np.sort(source * num_contexts + target, kind="stable")
    source, target = np.divmod(edges, num_contexts)
    first = source.searchsorted(np.arange(num_contexts + 1))  # (C + 1,)
    seen = np.zeros(num_contexts, dtype=np.bool_)
    seen[0] = True
    stack = [0]
    while stack:
        context = stack.pop()
        found = target[first[context] : first[context + 1]]
        found = found[~seen[found]]
        seen[found] = True
        stack.extend(set(found.tolist()))
    return seen
