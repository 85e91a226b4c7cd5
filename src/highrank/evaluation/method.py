"""A way to evaluate: static, with a model that learns, with a cache, or with both."""

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, score_dynamically
from highrank.evaluation.static import Evaluation, Scored, evaluate, score, summed
from highrank.evaluation.statistics import GradientStatistics
from highrank.models.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Method:
    dynamic: DynamicSettings | None = None
    statistics: GradientStatistics | None = None
    """Of the training text; `dynamic` needs them for the rule rms."""
    cache: CacheSettings | None = None

    @property
    def name(self) -> str:
        parts = {"dynamic": self.dynamic, "cache": self.cache}
        return "+".join(name for name, part in parts.items() if part is not None) or "static"

    @property
    def settings(self) -> dict[str, Any]:
        parts = {"dynamic": self.dynamic, "cache": self.cache}
        return {name: asdict(part) for name, part in parts.items() if part is not None}

    def score(
        self, model: LanguageModel, tokens: NDArray[np.integer]
    ) -> Generator[Scored, None, None]:
        """The text as one column. The cache sees the hidden states of the model that learns."""
        if self.dynamic is None:
            segments = score(model, tokens)
        else:
            segments = score_dynamically(model, tokens, self.dynamic, self.statistics)
        return segments if self.cache is None else with_cache(segments, self.cache)


def evaluate_by(
    method: Method,
    model: LanguageModel,
    tokens: NDArray[np.integer],
    batch_size: int = 1,
    on_progress: Callable[[float, str], None] | None = None,
) -> Evaluation:
    """Mean loss of the text; only static evaluation reads it in more than one column."""
    if method.name == "static":
        return evaluate(model, tokens, batch_size, on_progress=on_progress)
    if batch_size != 1:
        raise ValueError(f"batch_size must be 1 for {method.name} evaluation, got {batch_size}")
    return summed(method.score(model, tokens), len(tokens) - 1, on_progress)
