"""`bench eval`: what dynamic evaluation and the cache cost beyond the passes they are made of.

A small AWD-LSTM with a mixture of five softmaxes, random weights and random tokens: time does not
depend on what they are.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.build import build_model
from highrank.environment import environment
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically
from highrank.evaluation.static import score, steps, summed
from highrank.evaluation.statistics import gradient_statistics
from highrank.models.language_model import LanguageModel
from highrank.presets.small import ptb_small_mos
from highrank.studies.bench import harness

VOCAB_SIZE = 10_000
CACHE_WINDOW = 2000
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants that predict the same tokens."""

    baseline: str
    """What the others are compared with: the first."""
    max_ratio: float
    """The time of the second is meant to be at most this multiple of the baseline's."""
    num_tokens: int
    measurements: tuple[harness.Measurement, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationBenchResult(harness.BenchResult):
    segment: int
    cache_window: int
    comparisons: tuple[Comparison, ...]


def run_evaluation_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: harness.OnProgress = harness.silent
) -> EvaluationBenchResult:
    """Measure dynamic evaluation against plain passes, and the cache against static evaluation.

    Args:
        quick: fewer tokens.
    """
    start = time.monotonic()
    dynamic = _compare(
        {"forward and backward": passes_of, "dynamic": dynamic_of, "dynamic, sgd": sgd_of},
        max_ratio=1.3,
        num_tokens=250 if quick else 1000,
        rounds=rounds,
        on_progress=harness.part(on_progress, 0.0, 0.5),
    )
    cache = _compare(
        {"static": static_of, f"cache of {CACHE_WINDOW:,}": cache_of},
        max_ratio=1.5,
        # The cache is full for all but its first window: for a half of a quick run.
        num_tokens=(2 if quick else 4) * CACHE_WINDOW,
        rounds=rounds,
        on_progress=harness.part(on_progress, 0.5, 1.0),
    )
    return EvaluationBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        segment=DynamicSettings().segment,
        cache_window=CACHE_WINDOW,
        environment=environment(),
        comparisons=(dynamic, cache),
    )


def _compare(
    works: dict[str, Callable[[int], Callable[[], float]]],
    max_ratio: float,
    num_tokens: int,
    **options: Any,
) -> Comparison:
    baseline, *_ = works
    variants = [
        harness.Variant(name=name, prepare=partial(of, num_tokens), warm_up=partial(of, 10))
        for name, of in works.items()
    ]
    found = harness.compare(variants, baselines=(baseline,), **options)
    return Comparison(
        baseline=baseline, max_ratio=max_ratio, num_tokens=num_tokens, measurements=found
    )


def passes_of(num_tokens: int) -> Callable[[], float]:
    """The mean loss of the tokens, segment by segment, each with its backward pass; no update."""
    model, tokens = _inputs(num_tokens)
    segment = DynamicSettings().segment

    def work() -> float:
        state, total = model.initial_state(1), 0.0
        for inputs, target in steps(model, tokens, segment):
            model.zero_grad()
            out = model(inputs, target, state)
            out.loss.backward()
            state = out.state
            total += out.loss.item() * len(inputs)
        return total / num_tokens

    return work


def dynamic_of(num_tokens: int) -> Callable[[], float]:
    model, tokens = _inputs(num_tokens)
    statistics = gradient_statistics(model, _tokens(1000), batch_size=20)
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
    return build_model(ptb_small_mos(), VOCAB_SIZE).eval(), _tokens(num_tokens + 1)


def _tokens(count: int) -> NDArray[np.integer]:
    return np.random.default_rng(SEED).integers(VOCAB_SIZE, size=count)
