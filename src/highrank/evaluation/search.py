"""Search for settings of dynamic evaluation and of the cache, on the validation text.

Whatever is best there is then applied to the test text once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.evaluation.cache import Block, CacheSettings, History, mixed
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.static import Read, Scored, closed
from highrank.evaluation.statistics import SEGMENT, GradientStatistics

OnProgress = Callable[[float, str], None]
Settings = TypeVar("Settings", DynamicSettings, CacheSettings)

# Krause et al. (2018), for segments of 5 tokens.
LRS = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3)


@dataclass(frozen=True, kw_only=True)
class Trial(Generic[Settings]):
    settings: Settings
    nats: float
    """Mean loss of a token; inf if it was no finite number."""


@dataclass(frozen=True, kw_only=True)
class Search(Generic[Settings]):
    trials: tuple[Trial[Settings], ...]
    """In the order of the grid."""
    num_tokens: int
    """How many each trial has predicted."""

    @property
    def best(self) -> Trial[Settings]:
        """The lowest loss; the first of equals."""
        return min(self.trials, key=lambda trial: trial.nats)


@dataclass(frozen=True, kw_only=True)
class CacheGrid:
    """All combinations of these; with weight 0 there is no cache, whatever the others are."""

    windows: tuple[int, ...] = (100, 500, 2000)
    thetas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    weights: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)

    def settings(self) -> tuple[CacheSettings, ...]:
        """No cache first and once, if the weights have a 0; then every cache."""
        every = [
            CacheSettings(window=window, theta=theta, weight=weight)
            for window, theta, weight in product(self.windows, self.thetas, self.weights)
        ]
        without = [settings for settings in every if settings.weight == 0]
        return (*without[:1], *(settings for settings in every if settings.weight > 0))


def dynamic_grid(
    base: DynamicSettings,
    lrs: Sequence[float] | None = None,
    decays: Sequence[float] | None = None,
    epsilons: Sequence[float] | None = None,
) -> tuple[DynamicSettings, ...]:
    """All combinations of learning rates, decays and epsilons; the rest is as in `base`.

    Args:
        lrs: if None, those of Krause et al., for longer segments larger in proportion.
        decays: the same.
        epsilons: if None, that of `base`.
    """
    longer = base.segment / SEGMENT
    lrs = [lr * longer for lr in LRS] if lrs is None else lrs
    decays = [decay * longer for decay in DECAYS] if decays is None else decays
    epsilons = [base.epsilon] if epsilons is None else epsilons
    return tuple(
        replace(base, lr=lr, decay=decay, epsilon=epsilon)
        for lr, decay, epsilon in product(lrs, decays, epsilons)
    )


def search_dynamic(
    model: nn.Module,
    tokens: NDArray[np.integer],
    statistics: GradientStatistics | None,
    grid: Sequence[DynamicSettings],
    *,
    num_tokens: int | None = None,
    on_progress: OnProgress | None = None,
    read: Read | None = None,
) -> Search[DynamicSettings]:
    """Evaluate the validation text with every setting of the grid, from the trained weights each.

    Args:
        num_tokens: predict only so many of the text's first tokens; all if None.
        read: how to read with a model that is no `LanguageModel`.
    """
    _check_grid(grid)
    if num_tokens is not None and num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    tokens = tokens if num_tokens is None else tokens[: num_tokens + 1]
    trials: list[Trial[DynamicSettings]] = []
    for settings in grid:
        show = _part(on_progress, trials, len(grid), settings)
        nats = evaluate_dynamically(model, tokens, settings, statistics, show, read).nats
        trials.append(Trial(settings=settings, nats=nats if math.isfinite(nats) else math.inf))
    return Search(trials=tuple(trials), num_tokens=len(tokens) - 1)


def search_cache(
    segments: Iterable[Scored],
    grid: CacheGrid,
    num_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Search[CacheSettings]:
    """The loss of a scored text with every cache of the grid, in one pass over `segments`.

    Similarities are computed once, for the longest window; weights cost next to nothing.
    `segments` is closed at the end.

    Args:
        segments: a text as `score` or `score_dynamically` yields it.
        num_tokens: how many there will be, for `on_progress`.
    """
    settings = grid.settings()
    _check_grid(settings)
    history, count = History(max(grid.windows)), 0
    totals = torch.zeros(len(settings), dtype=torch.float64)
    with closed(segments):
        for segment in segments:
            for block in history.compare(segment):
                totals += torch.stack(list(_losses(block, grid))).cpu()
            count += len(segment.target)
            if on_progress is not None and num_tokens is not None:
                on_progress(count / num_tokens, "searching the cache's settings")
    if count == 0:
        raise ValueError("segments must hold at least one token, got none")
    nats = (totals / count).tolist()
    trials = (
        Trial(settings=s, nats=n if math.isfinite(n) else math.inf)
        for s, n in zip(settings, nats, strict=True)
    )
    return Search(trials=tuple(trials), num_tokens=count)


def _losses(block: Block, grid: CacheGrid) -> Iterator[Tensor]:
    """Summed over the block, of each of `grid.settings()`."""
    if 0 in grid.weights:
        yield -block.log_prob.cpu().sum(dtype=torch.float64)
    weights = [weight for weight in grid.weights if weight > 0]
    for window, theta in product(grid.windows, grid.thetas) if weights else ():
        log_cache = block.log_cache(window, theta)
        for weight in weights:
            yield -mixed(block.log_prob, log_cache, weight).cpu().sum(dtype=torch.float64)


def _check_grid(grid: Sequence[object]) -> None:
    if not grid:
        raise ValueError("the grid must have at least one setting, got none")


def _part(
    on_progress: OnProgress | None,
    trials: Sequence[Trial[DynamicSettings]],
    num_trials: int,
    settings: DynamicSettings,
) -> OnProgress | None:
    """For one trial of many."""
    if on_progress is None:
        return None
    done = len(trials)
    text = f"lr {settings.lr:.3g}, decay {settings.decay:.3g}, epsilon {settings.epsilon:.3g}"
    if trials:
        best = min(trials, key=lambda trial: trial.nats)
        text += f"; best so far {math.exp(min(best.nats, 700.0)):.2f}"
    return lambda share, _: on_progress((done + share) / num_trials, text)
