"""Methods of evaluation (static, dynamic, with a cache, or both) and the search for their settings.

Settings are searched on the validation split. Whatever is best there is then applied to the test
split once.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.evaluation.cache import Block, CacheSettings, History, mix, with_cache
from highrank.evaluation.dynamic import (
    DynamicSettings,
    GradientStatistics,
    converted,
    evaluate_dynamically,
    score_dynamically,
    select_parameters,
    statistics_beside,
)
from highrank.evaluation.grids import Settings, widened
from highrank.evaluation.static import Evaluation, Forward, Scored, closed, evaluate, score, summed
from highrank.evaluation.temperature import TemperatureSettings, fit_temperature, score_at
from highrank.models.language_model import LanguageModel
from highrank.progress import OnProgress, ProgressBar, no_progress
from highrank.run.loading import LoadedRun

# Steps beyond the values of a grid, if the best is at its edge.
MOST_WIDENINGS = 4


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


@dataclass(frozen=True, kw_only=True)
class Method:
    dynamic: DynamicSettings | None = None
    statistics: GradientStatistics | None = None
    """Gradients on the training split; `dynamic` needs them for the rule rms."""
    cache: CacheSettings | None = None
    temperature: TemperatureSettings | None = None
    """Alone: neither with `dynamic` nor with `cache`."""
    searches: Mapping[str, Search[Any]] = field(default_factory=dict)
    """The searches on valid that found the settings, by the method's part."""

    def context_length(self, model: LanguageModel) -> int | None:
        """Tokens that a prediction can depend on; None: all before it, as dynamic ones do."""
        found = model.context_length
        if found is None or self.dynamic is not None:
            return None
        return found + (0 if self.cache is None else self.cache.window)

    @property
    def is_static(self) -> bool:
        return self.dynamic is None and self.cache is None and self.temperature is None

    @property
    def name(self) -> str:
        return "+".join(self.settings) or "static"

    @property
    def settings(self) -> dict[str, Any]:
        parts = {
            "dynamic": self.dynamic,
            "cache": self.cache,
            "temperature": self.temperature,
        }
        return {name: asdict(part) for name, part in parts.items() if part is not None}

    def score(
        self, model: LanguageModel, tokens: NDArray[np.integer]
    ) -> Generator[Scored, None, None]:
        """One stream. The cache compares hidden states of the model that learns."""
        if self.temperature is not None:
            return score_at(model, tokens, self.temperature)
        if self.dynamic is None or self.dynamic.lr == 0:
            segments = score(model, tokens)
        else:
            segments = score_dynamically(model, tokens, self.dynamic, self.statistics)
        return segments if self.cache is None else with_cache(segments, self.cache)


def evaluate_by(
    method: Method,
    model: LanguageModel,
    tokens: NDArray[np.integer],
    batch_size: int = 1,
    on_progress: OnProgress | None = None,
    sentence_end: int | None = None,
) -> Evaluation:
    """Mean loss of the tokens; only static evaluation has more than one stream.

    Args:
        sentence_end: token id of `<eos>` if every line is alone; for static evaluation only.
    """
    if method.is_static:
        return evaluate(
            model, tokens, batch_size, on_progress=on_progress, sentence_end=sentence_end
        )
    if sentence_end is not None:
        raise ValueError(
            f"evaluation must be static where every line is alone, got {method.name}, which "
            "learns from the lines before"
        )
    if batch_size != 1:
        raise ValueError(f"batch_size must be 1 for {method.name} evaluation, got {batch_size}")
    return summed(method.score(model, tokens), len(tokens) - 1, on_progress)


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
        if settings.lr == 0:
            nats = summed(score(model, tokens, forward=forward), len(tokens) - 1, show).nats
        else:
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
    """Losses summed over the block, for each of the grid's settings."""
    for (window, theta, has_cache), group in groupby(
        grid, key=lambda settings: (settings.window, settings.theta, settings.weight > 0)
    ):
        log_cache = block.log_cache(window, theta) if has_cache else block.log_prob
        for settings in group:
            log_prob = mix(block.log_prob, log_cache, settings.weight)
            yield -log_prob.cpu().sum(dtype=torch.float64)


def _part(
    on_progress: OnProgress | None,
    trials: Sequence[Trial[DynamicSettings]],
    num_trials: int,
    settings: DynamicSettings,
) -> OnProgress | None:
    """Progress of one trial of many."""
    if on_progress is None:
        return None
    done = len(trials)
    text = f"lr {settings.lr:.3g}, decay {settings.decay:.3g}, epsilon {settings.epsilon:.3g}"
    if trials:
        best = min(trial.nats for trial in trials)
        text += f"; best so far {math.exp(min(best, 700.0)):.2f}"
    return lambda fraction, _: on_progress((done + fraction) / num_trials, text)


def find_method(
    loaded: LoadedRun,
    dynamic: Sequence[DynamicSettings] = (),
    cache: Sequence[CacheSettings] = (),
    *,
    convention: str = "paper",
    widen: bool = False,
    search_tokens: int | None = None,
    progress: ProgressBar = no_progress,
) -> Method:
    """The method with the best of the settings on valid: first how to learn, then the cache on top.

    Args:
        dynamic: as `dynamic_grid` makes them; none for a model that does not learn. A single one
            is taken, several are tried.
        cache: as `cache_grid` makes them; none for no cache.
        convention: of `dynamic`, a key of `highrank.evaluation.dynamic.CONVENTIONS`.
        widen: try values beyond those of a grid if the best is the lowest or highest.
        search_tokens: predict only so many of the first tokens of valid in a search.
    """
    method, model = Method(), loaded.model
    # Only a search needs the corpus: without one a run's folder is enough.
    valid: NDArray[np.integer] = np.empty(0, np.int64)
    if len(dynamic) > 1 or len(cache) > 1:
        valid = loaded.corpus.split("valid")[: search_tokens and search_tokens + 1]
    if dynamic:
        dynamic, statistics = _prepare_dynamic(loaded, dynamic, convention, progress)
        method = Method(dynamic=dynamic[0], statistics=statistics)

        def try_dynamic(grid: Sequence[DynamicSettings]) -> Search[DynamicSettings]:
            with progress(f"Trying {len(grid)} ways to learn, on valid") as on_progress:
                return search_dynamic(model, valid, statistics, grid, on_progress=on_progress)

        if len(dynamic) > 1:
            found = _search(try_dynamic, dynamic, widen)
            best = _best(found, "lr")
            method = replace(method, dynamic=best, searches={"dynamic": found})

    def try_cache(grid: Sequence[CacheSettings]) -> Search[CacheSettings]:
        with progress(f"Trying {len(grid)} settings of the cache, on valid") as on_progress:
            return search_cache(method.score(model, valid), grid, len(valid) - 1, on_progress)

    if len(cache) > 1:
        tried = _search(try_cache, cache, widen)
        searches = {**method.searches, "cache": tried}
        return replace(method, cache=_best(tried, "theta"), searches=searches)
    return replace(method, cache=cache[0]) if cache else method


def find_temperature(
    model: LanguageModel, valid: NDArray[np.integer], progress: ProgressBar = no_progress
) -> Method:
    """The method of one temperature, fitted on valid, 1 among those that are tried."""
    with progress("Fitting a temperature, on valid") as on_progress:
        tried = fit_temperature(model, valid, on_progress)
    trials = tuple(Trial(settings=settings, nats=nats) for settings, nats in tried)
    search = Search(trials=trials, num_tokens=len(valid) - 1)
    return Method(temperature=search.best.settings, searches={"temperature": search})


def _search(
    try_grid: Callable[[Sequence[Settings]], Search[Settings]],
    grid: Sequence[Settings],
    widen: bool,
) -> Search[Settings]:
    """All trials of the grid, and of values beyond it as long as the best is at its edge."""
    found = try_grid(grid)
    for _ in range(MOST_WIDENINGS if widen else 0):
        further = widened(found.best.settings, [trial.settings for trial in found.trials])
        if not further:
            break
        found = replace(found, trials=(*found.trials, *try_grid(further).trials))
    return found


def _prepare_dynamic(
    loaded: LoadedRun, grid: Sequence[DynamicSettings], convention: str, progress: ProgressBar
) -> tuple[Sequence[DynamicSettings], GradientStatistics | None]:
    """The settings in the paper's convention, and the statistics that the rule rms needs."""
    first = grid[0]
    select_parameters(loaded.model, first.adapt)
    if first.rule != "rms":
        return grid, None
    with progress("Gradient statistics of the training split") as on_progress:
        train = loaded.corpus.split("train")
        statistics = statistics_beside(
            loaded.folder, loaded.model, train, segment=first.segment, on_progress=on_progress
        )
    if convention != "paper":
        num_batches, num_tensors = statistics.num_batches, statistics.num_tensors
        grid = [
            converted(settings, convention, num_batches=num_batches, num_tensors=num_tensors)
            for settings in grid
        ]
    return grid, statistics


def _best(search: Search[Settings], name: str) -> Settings:
    """The best settings; there are none if no trial has a finite loss."""
    if search.best.nats == math.inf:
        raise ValueError(f"No trial has a finite loss: try a lower {name}.")
    return search.best.settings
