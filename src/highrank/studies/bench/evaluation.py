"""`bench eval`: what dynamic evaluation and the cache cost beyond the passes they are made of.

A small AWD-LSTM with a mixture of five softmaxes, random weights and random words: time does not
depend on what they are.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.build import build_model
from highrank.environment import Environment, environment
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.static import score, steps, summed
from highrank.evaluation.statistics import gradient_statistics
from highrank.models.language_model import LanguageModel
from highrank.presets.small import ptb_small_mos
from highrank.studies.bench.harness import Measurement, OnProgress, Variant, compare, part

VOCAB_SIZE = 10_000
CACHE_WINDOW = 2000
SEED = 0
PLAIN, STATIC = "forward and backward", "static"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants that read the same words."""

    baseline: str
    """What the others are compared with."""
    limit: float
    """What the ratio of the first of the others may be."""
    num_tokens: int
    """That each predicts."""
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationBenchResult:
    rounds: int
    elapsed: float
    """Seconds."""
    segment: int
    cache_window: int
    environment: Environment
    comparisons: tuple[Comparison, ...]


def run_evaluation_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: OnProgress | None = None
) -> EvaluationBenchResult:
    """Measure dynamic evaluation against plain passes, and the cache against static evaluation.

    Args:
        quick: a quarter of the words.
    """
    start, share = time.monotonic(), 4 if quick else 1
    dynamic = _comparison(
        {PLAIN: read_and_differentiate, "dynamic": dynamic_of, "dynamic, sgd": sgd_of},
        baseline=PLAIN,
        limit=1.3,
        num_tokens=1000 // share,
        rounds=rounds,
        on_progress=part(on_progress, 0.0, 0.5),
    )
    cache = _comparison(
        {STATIC: static_of, f"cache of {CACHE_WINDOW:,}": cache_of},
        baseline=STATIC,
        limit=1.5,
        # The cache is full for all but its first window: for a half of a quick run.
        num_tokens=(2 if quick else 4) * CACHE_WINDOW,
        rounds=rounds,
        on_progress=part(on_progress, 0.5, 1.0),
    )
    return EvaluationBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        segment=DynamicSettings().segment,
        cache_window=CACHE_WINDOW,
        environment=environment(),
        comparisons=(dynamic, cache),
    )


def _comparison(
    works: dict[str, Callable[[int], Callable[[], float]]],
    *,
    baseline: str,
    limit: float,
    num_tokens: int,
    rounds: int,
    on_progress: OnProgress | None,
) -> Comparison:
    variants = [
        Variant(name=name, prepare=partial(of, num_tokens), warm_up=partial(of, 10))
        for name, of in works.items()
    ]
    measurements = compare(variants, rounds=rounds, baselines=(baseline,), on_progress=on_progress)
    return Comparison(
        baseline=baseline, limit=limit, num_tokens=num_tokens, measurements=measurements
    )


def read_and_differentiate(num_tokens: int) -> Callable[[], float]:
    """The mean loss of the words, segment by segment, each with its backward pass; no update."""
    model, tokens = _inputs(num_tokens)
    segment = DynamicSettings().segment

    def work() -> float:
        state, total = model.initial_state(1), 0.0
        for words, target in steps(model, tokens, segment):
            model.zero_grad()
            out = model(words, target, state)
            out.loss.backward()
            state = out.state
            total += out.loss.item() * len(words)
        return total / num_tokens

    return work


def dynamic_of(num_tokens: int) -> Callable[[], float]:
    model, tokens = _inputs(num_tokens)
    statistics = gradient_statistics(model, _words(1000), batch_size=20)
    return lambda: evaluate_dynamically(model, tokens, DynamicSettings(), statistics).nats


def sgd_of(num_tokens: int) -> Callable[[], float]:
    model, tokens = _inputs(num_tokens)
    settings = DynamicSettings(rule="sgd", lr=0.1)
    return lambda: evaluate_dynamically(model, tokens, settings).nats


def static_of(num_tokens: int) -> Callable[[], float]:
    model, tokens = _inputs(num_tokens)
    return lambda: summed(score(model, tokens)).nats


def cache_of(num_tokens: int) -> Callable[[], float]:
    model, tokens = _inputs(num_tokens)
    settings = CacheSettings(window=CACHE_WINDOW)
    return lambda: summed(with_cache(score(model, tokens), settings)).nats


def _inputs(num_tokens: int) -> tuple[LanguageModel, NDArray[np.integer]]:
    torch.manual_seed(SEED)
    return build_model(ptb_small_mos(), VOCAB_SIZE).eval(), _words(num_tokens + 1)


def _words(count: int) -> NDArray[np.integer]:
    return np.random.default_rng(SEED).integers(VOCAB_SIZE, size=count)
