"""From the options of `highrank evaluate` to a method: statistics first, then the search."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from highrank.cli.console import progress
from highrank.run import LoadedRun

if TYPE_CHECKING:
    from highrank.cli.evaluate import Options
    from highrank.evaluation.dynamic import DynamicSettings
    from highrank.evaluation.method import Method
    from highrank.evaluation.search import CacheGrid, Search, Settings
    from highrank.evaluation.statistics import GradientStatistics


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The method as asked for; grids of one setting unless they are to be searched."""

    dynamic: "tuple[DynamicSettings, ...]" = ()
    convention: str = "paper"
    cache: "CacheGrid | None" = None
    is_search: bool = False
    search_tokens: int | None = None


def plan(options: "Options") -> Plan:
    """Raise ValueError for settings that cannot be."""
    return Plan(
        dynamic=options.dynamic_options.grid(options.search) if options.dynamic else (),
        convention=options.dynamic_options.convention,
        cache=options.cache_options.grid(options.search) if options.cache else None,
        is_search=options.search,
        search_tokens=options.search_tokens,
    )


def find_method(plan: Plan, loaded: LoadedRun) -> "tuple[Method, dict[str, Search[Any]]]":
    """The method, and what was tried on valid to find it: first how to learn, then the cache."""
    from highrank.evaluation.method import Method
    from highrank.evaluation.search import search_cache, search_dynamic
    from highrank.evaluation.statistics import chosen

    method = Method()
    searches: dict[str, Search[Any]] = {}
    valid = loaded.corpus.split("valid")[: plan.search_tokens and plan.search_tokens + 1]
    if plan.dynamic:
        chosen(loaded.model, plan.dynamic[0].adapt)
        statistics = _statistics(plan, loaded)
        grid = [_in_paper_s(plan, settings, statistics) for settings in plan.dynamic]
        settings = grid[0]
        if plan.is_search:
            with progress(f"Trying {len(grid)} ways to learn, on valid") as on_progress:
                searches["dynamic"] = search_dynamic(
                    loaded.model, valid, statistics, grid, on_progress=on_progress
                )
            settings = _best(searches["dynamic"], "lower --dynamic.lr")
        method = Method(dynamic=settings, statistics=statistics)
    if plan.cache is not None:
        caches = plan.cache.settings()
        cache = caches[0]
        if plan.is_search:
            with progress(f"Trying {len(caches)} settings of the cache, on valid") as on_progress:
                searches["cache"] = search_cache(
                    method.score(loaded.model, valid), plan.cache, len(valid) - 1, on_progress
                )
            cache = _best(searches["cache"], "a lower --cache.theta")
        method = Method(dynamic=method.dynamic, statistics=method.statistics, cache=cache)
    return method, searches


def _best(search: "Search[Settings]", advice: str) -> "Settings":
    """The best settings; there are none if no trial has a finite loss."""
    best = search.best
    if best.nats == math.inf:
        raise ValueError(f"a trial must have a finite loss, got none: try {advice}")
    return best.settings


def searches_as_json(searches: "Mapping[str, Search[Any]]") -> dict[str, Any]:
    return {
        name: {
            "split": "valid",
            "num_tokens": search.num_tokens,
            "trials": [
                # JSON has no infinity, which is the loss of a model that learned too fast.
                asdict(trial.settings) | {"nats": trial.nats if trial.nats < math.inf else None}
                for trial in search.trials
            ],
        }
        for name, search in searches.items()
    }


def _statistics(plan: Plan, loaded: LoadedRun) -> "GradientStatistics | None":
    from highrank.evaluation.statistics import statistics_beside

    if plan.dynamic[0].rule != "rms":
        return None
    with progress("Gradient statistics of the training text") as on_progress:
        return statistics_beside(
            loaded.folder,
            loaded.model,
            loaded.corpus.split("train"),
            segment=plan.dynamic[0].segment,
            on_progress=on_progress,
        )


def _in_paper_s(
    plan: Plan, settings: "DynamicSettings", statistics: "GradientStatistics | None"
) -> "DynamicSettings":
    """The settings in the convention of the paper."""
    from highrank.evaluation.dynamic import converted

    if statistics is None or plan.convention == "paper":
        return settings
    return converted(
        settings,
        plan.convention,
        num_batches=statistics.num_batches,
        num_tensors=statistics.num_tensors,
    )
