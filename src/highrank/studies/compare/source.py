"""What heads are compared on: a prepared corpus, the beginning of one, or an exact language."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from highrank.data import factorised, senses
from highrank.data.catalog import find_corpus
from highrank.data.corpus import CorpusLike
from highrank.data.sampled import sample_corpus
from highrank.data.vocabulary import Vocabulary

# Exact languages by name; the group of the last token is all that matters. Mixtures of three
# softmaxes of size 8 represent `senses`; one softmax of size 31 represents `factorised`, one of
# size 3 `low-rank`.
LANGUAGES = {
    "senses": lambda: senses(num_contexts=100, order=1),
    "factorised": lambda: factorised(num_contexts=100, order=1, rank=32),
    "low-rank": lambda: factorised(num_contexts=100, order=1, rank=4),
}
SIZES = {"train": 400_000, "valid": 20_000, "test": 40_000}
NUM_CHAINS = 40


@dataclass(frozen=True)
class SlicedCorpus:
    """The beginning of each split, with the tokens that are in it."""

    vocabulary: Vocabulary
    tokens: dict[str, NDArray[np.integer]]

    def split(self, name: str) -> NDArray[np.integer]:
        return self.tokens[name]


@cache
def open_source(name: str, max_tokens: int | None = None) -> CorpusLike:
    """The corpus of this name or path.

    Args:
        max_tokens: of the training split; validation and test are at most an eighth of it each.
    """
    if name in LANGUAGES:
        return sample_corpus(LANGUAGES[name](), SIZES, num_chains=NUM_CHAINS)
    corpus = find_corpus(name)
    if max_tokens is None or max_tokens >= len(corpus.split("train")):
        return corpus
    splits = {
        split: np.array(corpus.split(split)[: max_tokens // (1 if split == "train" else 8)])
        for split in ("train", "valid", "test")
    }
    return SlicedCorpus(corpus.vocabulary, splits)


def floor_of(corpus: CorpusLike) -> float | None:
    """The loss of an exact language itself on its test tokens, in nats; None for other corpora."""
    return getattr(corpus, "floor", None)
