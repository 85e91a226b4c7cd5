"""What a sceptic adds to the control when it is evaluated: a cache, a temperature; or an n-gram."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.corpus import CorpusLike
from highrank.evaluation.check import quick_check
from highrank.evaluation.grids import FIT_TOKENS, cache_grid
from highrank.evaluation.ngram import ORDER, evaluate_ngram
from highrank.evaluation.search import Method, evaluate_by, find_temperature, search_cache
from highrank.evaluation.static import score
from highrank.models.language_model import LanguageModel
from highrank.ngram import build
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.result import NGramResult

# With θ = 0, a cache ignores what the model remembers.
THETAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def evaluate_baselines(
    model: LanguageModel, valid: NDArray[np.integer], test: NDArray[np.integer]
) -> dict[str, Any]:
    """Losses with a neural cache and with a temperature, whose settings are those best on valid."""
    start, first = time.monotonic(), valid[: FIT_TOKENS + 1]
    settings = search_cache(score(model, first), cache_grid(theta=THETAS)).best.settings
    found = _losses("cache", Method(cache=settings), model, valid, test, start)
    start = time.monotonic()
    return found | _losses("temperature", find_temperature(model, first), model, valid, test, start)


def _losses(
    name: str,
    method: Method,
    model: LanguageModel,
    valid: NDArray[np.integer],
    test: NDArray[np.integer],
    start: float,
) -> dict[str, Any]:
    settings = getattr(method, name)
    return {
        f"{name}_valid_loss": evaluate_by(method, model, valid).nats,
        f"{name}_test_loss": evaluate_by(method, model, test).nats,
        name: {
            **asdict(settings),
            "check": [asdict(finding) for finding in quick_check(model, valid, method) or ()],
            "seconds": time.monotonic() - start,
        },
    }


def ngram_alone(plan: Plan, corpus: CorpusLike) -> NGramResult:
    """An n-gram model of the training split, in as many streams as the runs."""
    start = time.monotonic()
    table = build(corpus.split("train"), len(corpus.vocabulary), ORDER).table
    sizes = {"valid": plan.variants[0].config.valid_batch_size, "test": plan.test_batch_size}
    valid, test = (evaluate_ngram(table, corpus.split(s), n).nats for s, n in sizes.items())
    return NGramResult(
        order=ORDER,
        table=table.size,
        valid_loss=valid,
        test_loss=test,
        seconds=time.monotonic() - start,
    )
