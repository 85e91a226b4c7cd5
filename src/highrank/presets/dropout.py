"""How much dropout: by how often a text is read, and by how many weights there are for it.

A text that is read once needs none. What is read again and again is learned by heart, the sooner
the more weights there are for each token. With e epochs, P weights and N tokens of training text,

    dropout = 0.05 · (log₂(1 + e · √(P / N)) − 1.5),   from 0 to 0.5

docs/training.md says which runs it comes from.
"""

import math
from collections.abc import Collection
from dataclasses import replace

from highrank.config import RunConfig, with_options

# What each doubling adds, the doublings without any, the most.
STEP, FREE, MOST = 0.05, 1.5, 0.5
# Rows of the output embedding that a token is compared with in an adaptive head, about.
ROWS = 2_000
# The network that the rule is for, and fractions of the dropout that each of its options has.
# A dropped embedding is a token that is dropped wherever it stands.
KIND = "awd-lstm"
PARTS = {
    "embedding_dropout": 0.25,
    "input_dropout": 1.0,
    "hidden_dropout": 1.0,
    "output_dropout": 1.0,
    "weight_dropout": 1.0,
}
# The options that the rule sets.
OPTIONS = (*(f"model.{name.replace('_', '-')}" for name in PARTS), "head.dropout")


def weights_of(config: RunConfig) -> int:
    """Weights of the LSTM's and the output layer's matrices that a token is multiplied with."""
    sizes, E = config.model.options["hidden_sizes"], config.model.embedding_size
    inputs = (E, *sizes[:-1])
    layers = sum(4 * h * (i + h) for i, h in zip(inputs, sizes, strict=True))
    return int(layers + sizes[-1] * E + ROWS * E)


def dropout_of(config: RunConfig, num_tokens: float, num_train: int) -> float:
    """The dropout for reading so many tokens of a text of `num_train`."""
    epochs, weights_per_token = num_tokens / num_train, weights_of(config) / num_train
    doublings = math.log2(1 + epochs * math.sqrt(weights_per_token))
    return round(min(MOST, max(0.0, STEP * (doublings - FREE))), 2)


def with_dropout(
    config: RunConfig, num_tokens: float, num_train: int, given: Collection[str] = frozenset()
) -> RunConfig:
    """The configuration with that dropout, but for options that the user has chosen.

    Args:
        num_tokens: that the run reads, some of them often.
        num_train: of the training split.
        given: those, such as model.input-dropout.
    """
    if config.model.kind != KIND:
        return config
    return set_dropout(config, dropout_of(config, num_tokens, num_train), given)


def set_dropout(
    config: RunConfig, dropout: float, given: Collection[str] = frozenset()
) -> RunConfig:
    """An LSTM's configuration with this dropout, but for options that the user has chosen."""
    options = {
        name: round(part * dropout, 3)
        for name, part in PARTS.items()
        if f"model.{name.replace('_', '-')}" not in given
    }
    head = config.head if "head.dropout" in given else replace(config.head, dropout=dropout)
    return replace(config, model=with_options(config.model, **options), head=head)
