"""The price of dynamic evaluation and of the cache beyond the passes they are made of.

    python benchmarks/evaluation.py --rounds 5

A small AWD-LSTM with a mixture of five softmaxes, random weights and random tokens: time does not
depend on what they are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from highrank.build import build_model
from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import (
    DynamicSettings,
    evaluate_dynamically,
    gradient_statistics,
)
from highrank.evaluation.static import score, steps, summed
from highrank.models.language_model import LanguageModel
from highrank.presets.small import ptb_small_mos
from highrank.progress import OnProgress
from highrank.studies.bench.harness import BenchResult, Variant, measure
from highrank.studies.bench.page import bench_table

SEED, WINDOW = 0, 2000
# The time of the second variant of a group is meant to be at most this multiple of the first's.
LIMITS = {"dynamic": 1.3, "cache": 1.5}


def evaluation(
    *,
    rounds: int = 5,
    tokens: int = 1000,
    vocab_size: int = 10_000,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare dynamic evaluation with plain passes, the cache with static evaluation.

    Args:
        rounds: How often each variant's time is taken; the best counts.
        tokens: For dynamic evaluation; for the cache, which must be full, eight times as many.
        vocab_size: Of the model.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    with progress("Measuring evaluation") as on_progress:
        result = run(rounds, tokens, vocab_size, on_progress)
    show(result, bench_table, json=json)


def run(rounds: int, num_tokens: int, vocab_size: int, on_progress: OnProgress) -> BenchResult:
    groups = {
        "dynamic": {"plain": plain_passes, "dynamic": dynamic, "dynamic, sgd": dynamic_sgd},
        "cache": {"static": static, f"cache of {WINDOW:,}": cached},
    }
    counts = {"dynamic": num_tokens, "cache": 8 * num_tokens}
    result = measure(
        {
            group: [
                Variant(
                    name=name,
                    prepare=partial(prepare, vocab_size, counts[group]),
                    warm_up=partial(prepare, vocab_size, 10),
                )
                for name, prepare in variants.items()
            ]
            for group, variants in groups.items()
        },
        title="What dynamic evaluation and the cache cost",
        method=(
            f"{num_tokens:,} tokens for dynamic evaluation, in segments of "
            f"{DynamicSettings().segment}, {8 * num_tokens:,} for the cache; plain: forward and "
            "backward. limit: what the time is meant to be at most, as a ratio to the first row."
        ),
        baselines=("plain", "static"),
        rounds=rounds,
        on_progress=on_progress,
    )
    limited = [
        replace(group, numbers={"limit": {group.measurements[1].name: LIMITS[group.name]}})
        for group in result.groups
    ]
    return replace(result, groups=tuple(limited))


def plain_passes(vocab_size: int, num_tokens: int) -> Callable[[], float]:
    """The mean loss of the tokens, segment by segment, each with its backward pass; no update."""
    model, tokens = make_inputs(vocab_size, num_tokens)
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


def dynamic(vocab_size: int, num_tokens: int) -> Callable[[], float]:
    model, tokens = make_inputs(vocab_size, num_tokens)
    statistics = gradient_statistics(model, make_tokens(vocab_size, 1000), batch_size=20)
    return lambda: evaluate_dynamically(model, tokens, DynamicSettings(), statistics).nats


def dynamic_sgd(vocab_size: int, num_tokens: int) -> Callable[[], float]:
    model, tokens = make_inputs(vocab_size, num_tokens)
    settings = DynamicSettings(rule="sgd", lr=0.1)
    return lambda: evaluate_dynamically(model, tokens, settings).nats


def static(vocab_size: int, num_tokens: int) -> Callable[[], float]:
    model, tokens = make_inputs(vocab_size, num_tokens)
    return lambda: summed(score(model, tokens)).nats


def cached(vocab_size: int, num_tokens: int) -> Callable[[], float]:
    model, tokens = make_inputs(vocab_size, num_tokens)
    settings = CacheSettings(window=WINDOW)
    return lambda: summed(with_cache(score(model, tokens), settings)).nats


def make_inputs(vocab_size: int, num_tokens: int) -> tuple[LanguageModel, NDArray[np.integer]]:
    torch.manual_seed(SEED)
    model = build_model(ptb_small_mos(), vocab_size).eval()
    return model, make_tokens(vocab_size, num_tokens + 1)


def make_tokens(vocab_size: int, count: int) -> NDArray[np.integer]:
    return np.random.default_rng(SEED).integers(vocab_size, size=count)


if __name__ == "__main__":
    tyro.cli(evaluation, config=(tyro.conf.FlagCreatePairsOff,))
