"""The sampled corpus follows its language, and the language's loss on it is its own."""

import numpy as np
import pytest

from highrank.data import factorised
from highrank.data.languages import sample_corpus


def test_the_floor_is_the_entropy_of_the_language():
    language = factorised(vocab_size=30, num_contexts=16, rank=6, seed=2)
    corpus = sample_corpus(language, {"train": 100, "valid": 100, "test": 200_000})
    assert corpus.floor == pytest.approx(language.entropy, abs=0.02)
    assert len(corpus.split("test")) == 200_000 and len(corpus.vocabulary) == 30
    # Contexts are the groups of the last two tokens, whatever came before: the text is one chain.
    counts = np.bincount(corpus.split("test"), minlength=30) / 200_000
    np.testing.assert_allclose(counts, language.stationary @ language.prob, atol=0.01)
