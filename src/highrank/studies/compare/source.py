"""Sources of text for a comparison: a prepared corpus, the beginning of one, an exact language."""

from contextlib import nullcontext
from functools import cache

import numpy as np

from highrank.data import factorised, senses
from highrank.data.catalog import CATALOG, DEFAULT_CORPUS, corpus_option, find_corpus
from highrank.data.corpus import CorpusLike, MemoryCorpus
from highrank.data.languages import sample_corpus
from highrank.data.prepare import resolve_corpus
from highrank.progress import OnProgress

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
    lengths = {"train": max_tokens, "valid": max_tokens // 8, "test": max_tokens // 8}
    splits = {split: np.array(corpus.split(split)[:length]) for split, length in lengths.items()}
    return MemoryCorpus(corpus.vocabulary, splits)


def prepare_source(name: str, on_progress: OnProgress) -> str:
    """Prepare a text, or the default corpus; return the name by which `open_source` finds it."""
    if name in LANGUAGES or name in CATALOG and name != DEFAULT_CORPUS:
        return name
    return corpus_option(resolve_corpus(name, lambda title: nullcontext(on_progress)))
