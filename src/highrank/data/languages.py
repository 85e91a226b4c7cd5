"""Languages whose distribution P* is a table: a model's loss is computed, not estimated.

In context c a language emits token v with probability P*(v | c) and moves to `next_context[c, v]`.
There are two families: one that a softmax represents exactly, one that a mixture of softmaxes does.
Their contexts are what the last `order` tokens leave behind: every token has one of G groups, γ(v),
the context is (γ(w_1), …, γ(w_order)), and C is G^order. With G = V it is the last tokens.

C contexts, V tokens, B chains, T tokens of a chain, r rank, S senses, K senses of one context.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from highrank.data.corpus import MemoryCorpus
from highrank.data.vocabulary import Vocabulary

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
    """Independent walks, one per row: contexts[b, t] is where tokens[b, t] was drawn."""

    tokens: Integers
    contexts: Integers


@dataclass(frozen=True, eq=False)
class Language:
    """A next-token distribution for each context, and the context that each token leads to.

    Args:
        log_prob: log P*(v | c), float64, (C, V); -inf for a token that the context rules out.
        next_context: context after token v in context c, any integer type, (C, V). Every context
            must be reachable from every other through possible tokens.
    """

    log_prob: Floats
    next_context: Integers

    def __post_init__(self) -> None:
        if self.log_prob.ndim != 2 or self.log_prob.size == 0:
            raise ValueError(f"log_prob must be (contexts, tokens), got {self.log_prob.shape}")
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

    def excess(self, log_prob: Floats) -> float:
        """Σ_c μ_c KL(P*(· | c) ‖ P(· | c)): cross-entropy minus entropy, in nats per token.

        Args:
            log_prob: log P(v | c) of a model, normalised, (C, V). If it rules out a token that the
                language may emit, the excess is inf.
        """
        if log_prob.shape != self.log_prob.shape:
            raise ValueError(f"log_prob must be {self.log_prob.shape}, got {log_prob.shape}")
        _check_normalised(log_prob, MODEL_TOLERANCE)
        # -inf minus -inf is the NaN of a token that both rule out; the mean leaves it out.
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
        _check_positive(num_tokens=num_tokens, num_chains=num_chains)
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
        """c + Σ_{w ≤ v} P*(w | c), ascending, (C·V,): the first edge above c + u gives the token.

        The last edge of a context is c + 1 exactly, and an impossible token repeats the edge before
        it: whatever rounding does (1e-11 at C = 40,000), no impossible token is ever drawn.
        """
        cumulative = self.prob.cumsum(axis=1)
        cumulative /= cumulative[:, -1:]
        cumulative += np.arange(self.num_contexts)[:, None]
        return cumulative.ravel()

    def _mean(self, value: Floats) -> float:
        """Long-run mean of value (C, V); what never happens does not count, not even as NaN."""
        joint = self.stationary[:, None] * self.prob
        return float((joint * np.where(joint > 0, value, 0.0)).sum())


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
    for start, end, verb in ((source, target, "reachable from"), (target, source, "able to reach")):
        seen = _reachable(start, end, len(possible))
        if not seen.all():
            raise ValueError(
                f"every context must be {verb} context 0 through possible tokens, "
                f"got {(~seen).sum()} that are not, such as context {seen.argmin()}"
            )


def _reachable(source: Integers, target: Integers, num_contexts: int) -> NDArray[np.bool_]:
    """Whether a walk along the edges source → target gets from context 0 to each context, (C,)."""
    seen: NDArray[np.bool_] = np.arange(num_contexts) == 0
    while True:
        found = seen.copy()
        found[target[seen[source]]] = True
        if np.array_equal(found, seen):
            return seen
        seen = found


def factorised(
    *,
    vocab_size: int = 200,
    num_contexts: int = 400,
    order: int = 2,
    rank: int = 64,
    scale: float = 2.5,
    seed: int = 0,
) -> Language:
    """log P* = log_softmax(H Wᵀ) with Gaussian H (C, r-1) and W (V, r-1): log P* has rank r.

    One softmax of size r-1 represents this language exactly, and no smaller one does.

    Args:
        num_contexts: C = G^order for a whole number of token groups G up to vocab_size.
        rank: r, from 2 to the smaller of vocab_size and num_contexts.
        scale: standard deviation of the logits.
    """
    _check_positive(scale=scale)
    rng = default_rng(seed)
    next_context = _transition(vocab_size, num_contexts, order, rng)
    largest = min(vocab_size, num_contexts)
    if not 2 <= rank <= largest:
        raise ValueError(f"rank must be from 2 to {largest} (vocab_size, num_contexts), got {rank}")
    log_prob = _gaussian_log_prob(num_contexts, vocab_size, rank - 1, scale, rng)  # (C, V)
    return Language(log_prob, next_context)


def senses(
    *,
    vocab_size: int = 200,
    num_contexts: int = 400,
    order: int = 2,
    num_senses: int = 60,
    senses_per_context: int = 3,
    sense_size: int = 8,
    scale: float = 3.0,
    seed: int = 0,
) -> Language:
    """P*(· | c) = Σ_s blend(c, s) softmax(logits_s): a context blends a few of many sharp senses.

    As with words of several meanings, what a context may continue with is a sum of distributions,
    not of logits: P* has rank at most S, while log P* has a rank far above it, up to V. A mixture
    of K softmaxes of size `sense_size` represents it exactly; one small softmax does not.

    Args:
        num_contexts: C = G^order for a whole number of token groups G up to vocab_size.
        num_senses: S, the distributions that all contexts share.
        senses_per_context: K of them have a weight, uniform on the simplex; the others have none.
        sense_size: rank of the senses' logits, which are Gaussian as in `factorised`.
        scale: standard deviation of a sense's logits; more is sharper.
    """
    _check_positive(num_senses=num_senses, senses_per_context=senses_per_context)
    _check_positive(sense_size=sense_size, scale=scale)
    if senses_per_context > num_senses:
        limit = f"at most {num_senses} (num_senses)"
        raise ValueError(f"senses_per_context must be {limit}, got {senses_per_context}")
    rng = default_rng(seed)
    next_context = _transition(vocab_size, num_contexts, order, rng)
    sense = np.exp(_gaussian_log_prob(num_senses, vocab_size, sense_size, scale, rng))  # (S, V)
    weight = rng.dirichlet(np.ones(senses_per_context), size=num_contexts)  # (C, K)
    blend = np.pad(weight, ((0, 0), (0, num_senses - senses_per_context)))  # (C, S)
    return Language(np.log(rng.permuted(blend, axis=1) @ sense), next_context)


def _transition(vocab_size: int, num_contexts: int, order: int, rng: Generator) -> Integers:
    """Shift the token's group in, the oldest out: (c·G + γ(v)) mod G^order, (C, V). Row 0 is γ."""
    _check_positive(vocab_size=vocab_size, num_contexts=num_contexts, order=order)
    root = int(num_contexts ** (1 / order))
    valid = sorted({min(groups, vocab_size) ** order for groups in (root, root + 1)})
    if num_contexts not in valid:
        raise ValueError(
            f"num_contexts must be G**{order} (order) for a whole number G from 1 to {vocab_size} "
            f"(vocab_size), got {num_contexts}; nearest: {' or '.join(map(str, valid))}"
        )
    num_groups = round(num_contexts ** (1 / order))
    group = rng.permutation(np.arange(vocab_size) % num_groups)  # (V,)
    shifted = np.arange(num_contexts)[:, None] * num_groups  # (C, 1)
    next_context: Integers = (shifted + group) % num_contexts  # (C, V)
    return next_context


def _gaussian_log_prob(
    num_rows: int, vocab_size: int, rank: int, scale: float, rng: Generator
) -> Floats:
    """log_softmax of Gaussian logits of this rank and standard deviation, (num_rows, V)."""
    hidden = rng.standard_normal((num_rows, rank))
    weight = rng.standard_normal((vocab_size, rank))
    logits = hidden @ weight.T * (scale / np.sqrt(rank))
    log_prob: Floats = logits - logits.max(axis=1, keepdims=True)
    log_prob -= np.log(np.exp(log_prob).sum(axis=1, keepdims=True))
    return log_prob


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def sample_corpus(
    language: Language, sizes: dict[str, int], *, num_chains: int = 1
) -> MemoryCorpus:
    """Train, valid and test tokens of a language.

    Args:
        num_chains: number of chains of each split, end to end; many are faster, and each begins
            anew.
    """
    streams = {
        name: language.sample(size, seed, num_chains=num_chains)
        for seed, (name, size) in enumerate(sizes.items())
    }
    test = streams["test"]
    # The first token is an input only.
    losses = -language.log_prob[test.contexts.ravel()[1:], test.tokens.ravel()[1:]]
    tokens = {name: stream.tokens.ravel().astype(np.uint16) for name, stream in streams.items()}
    # Training needs a token that ends a line; the language does not.
    names = ("<eos>", *(f"w{index}" for index in range(1, language.vocab_size)))
    return MemoryCorpus(Vocabulary(names), tokens, float(losses.mean()))
