"""Two families of exact languages: one that a softmax can say, one that a mixture can say.

A context is what the last `order` words leave behind: every word has one of G groups, γ(v), the
context is (γ(w_1), …, γ(w_order)), and C is G^order. With G = V a context is the last words
themselves.

C contexts, V words, r rank, S senses, K senses of one context.
"""

import numpy as np
from numpy.random import Generator, default_rng

from highrank.data.language import Floats, Integers, Language


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

    One softmax of size r-1 says this language exactly, and none that is smaller does.

    Args:
        num_contexts: C = G^order for a whole number of word groups G up to vocab_size.
        rank: r, from 2 to the smaller of vocab_size and num_contexts.
        scale: standard deviation of the logits.
    """
    _check_positive(scale=scale)
    rng = default_rng(seed)
    next_context = _transition(vocab_size, num_contexts, order, rng)
    largest = min(vocab_size, num_contexts)
    if not 2 <= rank <= largest:
        raise ValueError(f"rank must be from 2 to {largest} (vocab_size, num_contexts), got {rank}")
    logits = _gaussian_logits(num_contexts, vocab_size, rank - 1, scale, rng)  # (C, V)
    return Language(_log_softmax(logits), next_context)


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
    of K softmaxes of size `sense_size` says this language exactly; one small softmax does not.

    Args:
        num_contexts: C = G^order for a whole number of word groups G up to vocab_size.
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
    sense = np.exp(_log_softmax(_gaussian_logits(num_senses, vocab_size, sense_size, scale, rng)))
    weight = rng.dirichlet(np.ones(senses_per_context), size=num_contexts)  # (C, K)
    blend = np.pad(weight, ((0, 0), (0, num_senses - senses_per_context)))  # (C, S)
    return Language(np.log(rng.permuted(blend, axis=1) @ sense), next_context)


def _transition(vocab_size: int, num_contexts: int, order: int, rng: Generator) -> Integers:
    """Shift the word's group in, the oldest out: (c·G + γ(v)) mod G^order, (C, V). Row 0 is γ."""
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


def _gaussian_logits(
    num_rows: int, vocab_size: int, inner_size: int, scale: float, rng: Generator
) -> Floats:
    """Rows of logits of rank `inner_size` and standard deviation `scale`, (num_rows, V)."""
    hidden = rng.standard_normal((num_rows, inner_size))
    weight = rng.standard_normal((vocab_size, inner_size))
    logits: Floats = hidden @ weight.T * (scale / np.sqrt(inner_size))
    return logits


def _log_softmax(logits: Floats) -> Floats:
    log_prob: Floats = logits - logits.max(axis=1, keepdims=True)
    log_prob -= np.log(np.exp(log_prob).sum(axis=1, keepdims=True))
    return log_prob


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
