"""Search for settings of dynamic evaluation and of the cache, on the validation split.

Whatever is best there is then applied to the test split once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.evaluation.cache import Block, CacheSettings, History, mixed
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.static import Forward, Scored, closed
from highrank.evaluation.statistics import SEGMENT, GradientStatistics
from highrank.progress import OnProgress

Settings = TypeVar("Settings", DynamicSettings, CacheSettings)

# Krause et al. (2018), for segments of 5 tokens.
LRS = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3)
# Of the cache.
WINDOWS = (100, 500, 2000)
THETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


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

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: the loss of a trial that diverged is None."""
        trials = [
            asdict(trial.settings) | {"nats": trial.nats if trial.nats < math.inf else None}
            for trial in self.trials
        ]
        return {"split": "valid", "num_tokens": self.num_tokens, "trials": trials}


def dynamic_grid(
    *,
    lr: Sequence[float] = (),
    epsilon: Sequence[float] = (),
    decay: Sequence[float] = (),
    convention: str = "paper",
    segment: int = SEGMENT,
    rule: Literal["rms", "sgd"] = "rms",
    adapt: Sequence[str] = (),
    is_search: bool = True,
) -> tuple[DynamicSettings, ...]:
    """All combinations of the given values.

    Args:
        lr, decay: if empty, those of Krause et al., for longer segments larger in proportion.
        epsilon: if empty, the default.
        convention: of the values, a key of `highrank.evaluation.dynamic.CONVENTIONS`; only the
            paper's has defaults.
        segment, rule, adapt: as in `DynamicSettings`; all parameters adapt if it is empty.
        is_search: if not, no more than one value each, and the default for what is empty.
    """
    base, longer = DynamicSettings(), segment / SEGMENT
    if convention != "paper" and not (lr and epsilon and decay):
        raise ValueError(f"lr, epsilon and decay must be given with the convention {convention}")
    if rule == "sgd":
        if not lr:
            raise ValueError("lr must be given for the rule sgd")
        if epsilon:
            raise ValueError("epsilon must go with the rule rms: sgd has none")
        if convention != "paper":
            raise ValueError(f"convention must be paper for the rule sgd, got {convention}")
    values = product(
        _values("lr", lr, base.lr, [value * longer for value in LRS], is_search),
        _values("decay", decay, base.decay, [value * longer for value in DECAYS], is_search),
        _values("epsilon", epsilon, base.epsilon, [base.epsilon], is_search),
    )
    shared: dict[str, Any] = {"segment": segment, "rule": rule, "adapt": tuple(adapt) or None}
    return tuple(
        DynamicSettings(lr=lr, decay=decay, epsilon=epsilon, **shared)
        for lr, decay, epsilon in values
    )


def cache_grid(
    *,
    window: Sequence[int] = (),
    theta: Sequence[float] = (),
    weight: Sequence[float] = (),
    is_search: bool = True,
) -> tuple[CacheSettings, ...]:
    """All combinations of the given values, or of the default ones; no cache first, and once.

    Args:
        is_search: if not, no more than one value each, and the default settings' for what is empty.
    """
    base = CacheSettings()
    every = [
        CacheSettings(window=window, theta=theta, weight=weight)
        for window, theta, weight in product(
            _values("window", window, base.window, WINDOWS, is_search),
            _values("theta", theta, base.theta, THETAS, is_search),
            _values("weight", weight, base.weight, WEIGHTS, is_search),
        )
    ]
    # With weight 0 there is no cache, whatever the others are.
    without = [settings for settings in every if settings.weight == 0]
    return (*without[:1], *(settings for settings in every if settings.weight > 0))


Number = TypeVar("Number", int, float)


def _values(
    name: str, given: Sequence[Number], default: Number, grid: Sequence[Number], is_search: bool
) -> Sequence[Number]:
    if is_search:
        return given or grid
    if len(given) > 1:
        raise ValueError(f"{name} must be one value without a search, got {len(given)}")
    return given or (default,)


def search_dynamic(
    model: nn.Module,
    tokens: NDArray[np.integer],
    statistics: GradientStatistics | None,
    grid: Sequence[DynamicSettings],
    *,
    on_progress: OnProgress | None = None,
    forward: Forward | None = None,
) -> Search[DynamicSettings]:
    """Evaluate the validation split with every setting of the grid, from the trained weights each.

    Args:
        forward: of a model that is no `LanguageModel`.
    """
    if not grid:
        raise ValueError("the grid must have at least one setting, got none")
    trials: list[Trial[DynamicSettings]] = []
    for settings in grid:
        show = _part(on_progress, trials, len(grid), settings)
        nats = evaluate_dynamically(model, tokens, settings, statistics, show, forward).nats
        trials.append(Trial(settings=settings, nats=nats if math.isfinite(nats) else math.inf))
    return Search(trials=tuple(trials), num_tokens=len(tokens) - 1)


def search_cache(
    segments: Iterable[Scored],
    grid: Sequence[CacheSettings],
    num_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Search[CacheSettings]:
    """The loss of scored tokens with every cache of the grid, in one pass over `segments`.

    Similarities are computed once, for the longest window; weights cost next to nothing.
    `segments` is closed at the end.

    Args:
        segments: as `score` or `score_dynamically` yields them.
        grid: as `cache_grid` orders it: weights vary fastest.
        num_tokens: how many there will be, for `on_progress`.
    """
    if not grid:
        raise ValueError("the grid must have at least one setting, got none")
    history, count = History(max(settings.window for settings in grid)), 0
    totals = torch.zeros(len(grid), dtype=torch.float64)
    with closed(segments):
        for segment in segments:
            for block in history.compare(segment):
                totals += torch.stack(list(_losses(block, grid))).cpu()
            count += len(segment.target)
            if on_progress is not None and num_tokens is not None:
                on_progress(count / num_tokens, "searching the cache's settings")
    if count == 0:
        raise ValueError("segments must hold at least one token, got none")
    trials = (
        Trial(settings=settings, nats=nats if math.isfinite(nats) else math.inf)
        for settings, nats in zip(grid, (totals / count).tolist(), strict=True)
    )
    return Search(trials=tuple(trials), num_tokens=count)


def _losses(block: Block, grid: Sequence[CacheSettings]) -> Iterator[Tensor]:
    """Summed over the block, for each of the grid's settings."""
    for (window, theta, has_cache), group in groupby(
        grid, key=lambda settings: (settings.window, settings.theta, settings.weight > 0)
    ):
        log_cache = block.log_cache(window, theta) if has_cache else block.log_prob
        for settings in group:
            log_prob = mixed(block.log_prob, log_cache, settings.weight)
            yield -log_prob.cpu().sum(dtype=torch.float64)


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
        best = min(trial.nats for trial in trials)
        text += f"; best so far {math.exp(min(best, 700.0)):.2f}"
    return lambda fraction, _: on_progress((done + fraction) / num_trials, text)
