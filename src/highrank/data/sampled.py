"""Corpora in memory: the beginning of a prepared one, or text of an exact language."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.data.languages import Language
from highrank.data.vocabulary import Vocabulary


class MemoryCorpus(NamedTuple):
    """Token ids of each split."""

    vocabulary: Vocabulary
    tokens: Mapping[str, NDArray[np.integer[Any]]]
    floor: float | None = None
    """Loss of an exact language itself on the test tokens, in nats per token; None for a text."""

    @property
    def token_counts(self) -> list[int]:
        """How often the training split has each token."""
        found: list[int] = np.bincount(
            self.tokens["train"], minlength=len(self.vocabulary)
        ).tolist()
        return found

    def split(self, name: str) -> NDArray[np.integer[Any]]:
        return self.tokens[name]


def sample_corpus(
    language: Language, sizes: dict[str, int], *, num_chains: int = 1
) -> MemoryCorpus:
    """Train, valid and test tokens.

    Args:
        num_chains: of each split, end to end; many are faster, and each begins anew.
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
