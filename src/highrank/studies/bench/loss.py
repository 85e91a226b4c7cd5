"""The shapes of `bench loss`, and inputs made from a seed.

N tokens, K components, E embedding size, V vocabulary, D hidden size.

What `bench loss` measured: plain data, made by `loss.py`, shown by `reports/bench.py`.

`bench loss`: one forward and backward pass through the mixture's loss, against the usual ways.

Every way to the loss is checked against the others, on the inputs that are timed, before any time
is taken.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from highrank.environment import Environment, environment
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.studies.bench.baselines import (
    EPSILON,
    GROWTH,
    SHAPES,
    Shape,
    composition_variant,
    missing_composition,
    mixture_inputs,
    mixture_variant,
    our_loss,
    variants,
)
from highrank.studies.bench.harness import (
    Measurement,
    OnProgress,
    compare,
    part,
    peak_memory,
    take_times,
)


@dataclass(frozen=True, kw_only=True)
class ShapeResult:
    shape: Shape
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """How the peak memory of `fused` grows with the vocabulary, the weight's gradient included."""

    shapes: tuple[Shape, Shape]
    peak_bytes: tuple[int | None, int | None]
    growth: int | None
    """Bytes from the first to the second; None if a peak is missing."""
    gradient_growth: int
    """Bytes by which the gradient of the weight grows."""
    allowed: int
    """`gradient_growth` and 32 MiB."""
    failure: str | None


@dataclass(frozen=True, kw_only=True)
class LossBenchResult:
    quick: bool
    rounds: int
    chunk_bytes: int | None
    seed: int
    elapsed: float
    """Seconds."""
    environment: Environment
    shapes: tuple[ShapeResult, ...]
    memory_growth: MemoryGrowth


BASELINES = ("limit", "fused")
# The ways to the same loss, as opposed to what they are measured against.
WAYS = ("fused", "chunked", "composition", "original", "log-space")
TOLERANCE = 1e-4
# Rows of a chunk of the composition to begin the search with.
ROWS = (128, 512, 2048)
SEED = 0
# What is allowed to grow with the vocabulary, besides the weight's gradient.
GROWTH_ALLOWANCE = 32 * 2**20


def run_loss_bench(
    names: Sequence[str] = (),
    *,
    rounds: int = 5,
    quick: bool = False,
    chunk_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> LossBenchResult:
    """Measure time and memory of all variants at each shape.

    Args:
        names: keys of `SHAPES`; all of them if there are none, "ptb" if `quick`.
        rounds: how often each variant's time is taken.
        quick: a tenth of the tokens, and at most two rounds.
        chunk_bytes: memory for the logits of one chunk of tokens, where this package chunks.
        on_progress: called with the share of the work done and what is being done.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
    shapes = chosen_shapes(names, quick)
    rounds = min(rounds, 2) if quick else rounds
    start, results, done = time.monotonic(), [], 0.0
    costs = [shape.table_bytes * (shape.embedding_size + 50) for shape in shapes]
    total = sum(costs) / 0.95
    for shape, cost in zip(shapes, costs, strict=True):
        share = part(on_progress, done, done + cost / total)
        results.append(_measure(shape, rounds, chunk_bytes, share))
        done += cost / total
    growth = measure_growth(GROWTH, chunk_bytes, part(on_progress, done, 1.0))
    return LossBenchResult(
        quick=quick,
        rounds=rounds,
        chunk_bytes=chunk_bytes,
        seed=SEED,
        elapsed=time.monotonic() - start,
        environment=environment(),
        shapes=tuple(results),
        memory_growth=growth,
    )


def chosen_shapes(names: Sequence[str], quick: bool) -> list[Shape]:
    """The shapes of these names, with a tenth of their tokens if `quick`."""
    for name in names:
        if name not in SHAPES:
            raise ValueError(f"shapes must be among {', '.join(SHAPES)}, got {name}")
    names = names or list(SHAPES)[: 1 if quick else None]
    shapes = [SHAPES[name] for name in dict.fromkeys(names)]
    return [replace(s, num_tokens=-(-s.num_tokens // 10)) for s in shapes] if quick else shapes


def best_rows(shape: Shape, on_progress: OnProgress | None = None) -> int:
    """The rows of a chunk with which the composition is fastest here: coarsely, then around it."""
    if missing_composition() is not None:
        return ROWS[0]
    num_rows = shape.num_tokens * shape.num_components
    composition_variant("warm-up", shape, SEED, min(ROWS[-1], num_rows)).prepare()()
    best, rows, done = 0, ROWS, 0

    def show(name: str) -> None:
        nonlocal done
        if on_progress is not None:
            on_progress(done / (2 * len(ROWS)), f"{shape.name}: composition, chunks of {name} rows")
        done += 1

    for _ in range(2):
        names = {str(min(count, num_rows)): min(count, num_rows) for count in rows}
        works = {k: composition_variant(k, shape, SEED, v).prepare() for k, v in names.items()}
        times = take_times(works, 1, show)
        best = int(min(times, key=lambda name: times[name]))
        rows = (max(1, best // 2), best, best * 2)
    return best


def check_losses(shape: Shape, losses: Mapping[str, float | None]) -> dict[str, str]:
    """Raise unless all ways yield the same loss; the original, up to its epsilon.

    Returns a note on what the epsilon does.
    """
    context, log_weight, weight, bias, target = mixture_inputs(shape, SEED)
    with torch.no_grad():
        exact, mean = mixture_loss(context, log_weight, weight, target, bias=bias)
        shifted = -(EPSILON + (-exact).exp()).log().mean().item()
    notes = {}
    for name in (name for name in WAYS if name in losses):
        want, got = shifted if name == "original" else mean.item(), losses[name]
        if got is None or not math.isclose(got, want, rel_tol=TOLERANCE):
            raise RuntimeError(
                f"loss of {name} at {shape.name} must be {want:.6f} within {TOLERANCE}, got {got}"
            )
        if name == "original":
            notes[name] = f"its epsilon changes the loss by {shifted - mean.item():.2g}"
    return notes


def measure_growth(
    shapes: tuple[Shape, Shape], chunk_bytes: int | None, on_progress: OnProgress | None = None
) -> MemoryGrowth:
    """The peak memory of `fused` at two sizes of the vocabulary."""
    peaks = []
    for index, shape in enumerate(shapes):
        if on_progress is not None:
            on_progress(index / 2, f"memory at V = {shape.vocab_size:,}")
        fused = mixture_variant("fused", partial(our_loss, "fused", chunk_bytes), shape, SEED)
        peaks.append(peak_memory(fused.prepare, fused.warm_up))
    if on_progress is not None:
        on_progress(1.0, "done")
    small, large = (peak.num_bytes for peak in peaks)
    gradient = 4 * (shapes[1].vocab_size - shapes[0].vocab_size) * shapes[1].embedding_size
    return MemoryGrowth(
        shapes=shapes,
        peak_bytes=(small, large),
        growth=None if small is None or large is None else large - small,
        gradient_growth=gradient,
        allowed=gradient + GROWTH_ALLOWANCE,
        failure=next((peak.failure for peak in peaks if peak.failure), None),
    )


def _measure(
    shape: Shape, rounds: int, chunk_bytes: int | None, on_progress: OnProgress | None
) -> ShapeResult:
    rows = best_rows(shape, part(on_progress, 0.0, 0.15))
    rest = part(on_progress, 0.15, 1.0)
    measurements = compare(
        variants(shape, SEED, chunk_bytes, rows),
        rounds=rounds,
        baselines=BASELINES,
        check=lambda losses: check_losses(shape, losses),
        on_progress=rest and (lambda share, text: rest(share, f"{shape.name}: {text}")),
    )
    mixture_inputs.cache_clear()
    return ShapeResult(shape=shape, measurements=measurements)
