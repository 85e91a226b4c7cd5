"""Sizes for a budget: how wide, how much dropout, by what the time allows to read.

A token takes time for each of the P weights that it is multiplied with, and time for all else:

    tokens(P) = seconds / (overhead + P · seconds per weight)

Both are measured on this machine, by two widths (`Speed`). Wider models learn more from each token,
narrower ones read more of them. The rule takes the widest LSTM that still reads `TOKENS_PER_WEIGHT`
tokens for each weight, and that has at most `WEIGHTS_PER_TOKEN` weights for each token of the text.
Dropout follows `presets/dropout.py`. docs/training.md says which runs these numbers come from.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from highrank.config import RunConfig, with_options
from highrank.presets.dropout import weights_of, with_dropout
from highrank.presets.small import with_warmup

WIDTHS = (64, 96, 128, 160, 192, 256, 320, 400, 512, 640, 800, 1024)
# Tokens to read for each weight, and weights for each token that there is.
TOKENS_PER_WEIGHT, WEIGHTS_PER_TOKEN = 2.0, 20.0
# Widths by which a machine's speed is measured.
TIMED_WIDTHS = (128, 512)
# The rate of `WIDTH_OF_RATE`; it falls with the root of the width.
WIDTH_OF_RATE = 320
# The part of a budget that is training.
TRAINING_FRACTION = 0.85
OPTIONS = ("model.embedding-size", "model.hidden-sizes")


class Speed(NamedTuple):
    """Seconds of training for a token: an overhead, and so many for each of `weights_of`."""

    overhead: float
    per_weight: float

    @classmethod
    def through(cls, timed: Mapping[int, float]) -> Self:
        """The line through the seconds for a token, which two numbers of weights have taken.

        With one number of weights, its seconds are those of every network.
        """
        (few, first), (many, last) = min(timed.items()), max(timed.items())
        if few == many:
            return cls(first, 0.0)
        # Nonsense of the clock: the wider network decides, and all of its time is its weights'.
        if not first < last <= first * many / few:
            return cls(0.0, last / many)
        per_weight = (last - first) / (many - few)
        return cls(last - per_weight * many, per_weight)

    def num_tokens(self, num_weights: int, seconds: float) -> float:
        """Tokens that a network of so many weights reads."""
        return seconds / (self.overhead + self.per_weight * num_weights)


@dataclass(frozen=True, kw_only=True)
class Sizing:
    config: RunConfig
    num_tokens: float
    """Tokens that the run is expected to read."""
    reason: str
    """The choice in a sentence."""


def of_width(config: RunConfig, width: int) -> RunConfig:
    """The configuration with two layers of this width; the last, and E, are narrower."""
    sizes = (width, 16 * round(0.75 * width / 16))
    model = replace(config.model, embedding_size=16 * max(2, round(width / 64)))
    model = with_options(model, hidden_sizes=sizes)
    rate = config.train.lr * min(1.0, math.sqrt(WIDTH_OF_RATE / width))
    return replace(config, model=model, train=replace(config.train, lr=float(f"{rate:.2g}")))


def suits(
    num_weights: int,
    num_tokens: float,
    num_train: int,
    rule: tuple[float, float] = (TOKENS_PER_WEIGHT, WEIGHTS_PER_TOKEN),
) -> bool:
    """Whether there are tokens enough for a network: to be read, and in the text.

    Args:
        num_weights: `weights_of` it.
        num_tokens: that it reads, some of them often.
        num_train: of the training split.
        rule: tokens to read for each weight, weights for each token of the text.
    """
    tokens_per_weight, weights_per_token = rule
    is_read = num_tokens >= tokens_per_weight * num_weights
    return is_read and num_weights <= weights_per_token * num_train


def timed(config: RunConfig, given: Collection[str] = frozenset()) -> list[RunConfig]:
    """Configurations whose speeds say that of all that `sized` chooses from."""
    if _has_sizes(given):
        return [config]
    return [of_width(config, width) for width in TIMED_WIDTHS]


def sized(
    config: RunConfig,
    seconds: float,
    speed: Speed,
    num_train: int,
    given: Collection[str] = frozenset(),
) -> Sizing:
    """The configuration for a budget, and why.

    Args:
        seconds: of training.
        speed: of this machine, forward and backward, by what `timed` returns.
        num_train: tokens of the training split.
        given: options that the user has chosen, such as model.hidden-sizes; they stay.
    """
    candidates = [of_width(config, width) for width in WIDTHS]
    if _has_sizes(given):
        candidates = [config]
    weights = [weights_of(one) for one in candidates]
    fitting = [
        one
        for one, P in zip(candidates, weights, strict=True)
        if suits(P, speed.num_tokens(P, seconds), num_train)
    ]
    chosen = fitting[-1] if fitting else candidates[0]
    num_tokens = speed.num_tokens(weights_of(chosen), seconds)
    num_tokens = min(num_tokens, config.train.epochs * num_train)
    rate = config.train.lr if "train.lr" in given else chosen.train.lr
    if "train.warmup-steps" not in given:
        chosen = with_warmup(chosen, num_tokens)
    found = with_dropout(chosen, num_tokens, num_train, given)
    found = replace(found, train=replace(found.train, lr=rate))
    dropout = found.model.options["output_dropout"]
    layers, time = "-".join(map(str, found.model.options["hidden_sizes"])), _duration(seconds)
    rate_of_tokens = speed.num_tokens(weights_of(found), 1)
    return Sizing(
        config=found,
        num_tokens=num_tokens,
        reason=(
            f"Sizes for {time} of training: LSTM {layers}, E = {found.model.embedding_size}, "
            f"dropout {dropout:g}, rate {found.train.lr:g}. At {rate_of_tokens:,.0f} tokens a "
            f"second it reads about {num_tokens / 1e6:.3g} M, {num_tokens / num_train:.2g} epochs. "
            "Any option of the command overrides it."
        ),
    )


def _has_sizes(given: Collection[str]) -> bool:
    return any(option in given for option in OPTIONS)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"
