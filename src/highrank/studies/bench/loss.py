"""`bench loss`: one forward and backward pass through the mixture's loss, by all variants.

Every implementation of the loss is checked against the others, on the inputs that are timed,
before any time is taken.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from highrank.environment import environment
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import (
    EPSILON,
    GROWTH,
    SEED,
    SHAPES,
    Shape,
    composition_variant,
    missing_composition,
    mixture_inputs,
    package_variant,
    variants,
)

# Of the same loss; the other variants are a lower bound and a smaller model.
IMPLEMENTATIONS = ("fused", "chunked", "compiled", "composition", "original", "log-space")
BASELINES = ("matmul", "fused")
TOLERANCE = 1e-4
# Rows of a chunk of the composition to begin the search with.
ROWS = (128, 512, 2048)
# What is allowed to grow with the vocabulary, besides the weight's gradient.
GROWTH_ALLOWANCE = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class ShapeResult:
    shape: Shape
    measurements: tuple[harness.Measurement, ...]


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
class LossBenchResult(harness.BenchResult):
    quick: bool
    chunk_bytes: int | None
    seed: int
    shapes: tuple[ShapeResult, ...]
    memory_growth: MemoryGrowth


def run_loss_bench(
    names: Sequence[str] = (),
    *,
    rounds: int = 5,
    quick: bool = False,
    chunk_bytes: int | None = None,
    on_progress: harness.OnProgress = harness.silent,
) -> LossBenchResult:
    """Measure time and memory of all variants at each shape.

    Args:
        names: keys of `SHAPES`; all of them if there are none, "ptb" if `quick`.
        rounds: how often each variant's time is taken.
        quick: a tenth of the tokens, and at most two rounds.
        chunk_bytes: memory for the logits of one chunk of tokens, where this package chunks.
    """
    harness.check_rounds(rounds)
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
    shapes = chosen_shapes(names, quick)
    rounds = min(rounds, 2) if quick else rounds
    start, results, done = time.monotonic(), [], 0.0
    costs = [shape.table_bytes * (shape.embedding_size + 50) for shape in shapes]
    total = sum(costs) / 0.95
    for shape, cost in zip(shapes, costs, strict=True):
        own = harness.part(on_progress, done, done + cost / total, f"{shape.name}: ")
        results.append(measure_shape(shape, rounds, chunk_bytes, own))
        done += cost / total
    growth = measure_growth(GROWTH, chunk_bytes, harness.part(on_progress, done, 1.0))
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


def measure_shape(
    shape: Shape, rounds: int, chunk_bytes: int | None, on_progress: harness.OnProgress
) -> ShapeResult:
    rows = best_rows(shape, harness.part(on_progress, 0.0, 0.15))
    measurements = harness.compare(
        variants(shape, chunk_bytes, rows),
        rounds=rounds,
        baselines=BASELINES,
        check=lambda losses: check_losses(shape, losses),
        on_progress=harness.part(on_progress, 0.15, 1.0),
    )
    mixture_inputs.cache_clear()
    return ShapeResult(shape=shape, measurements=measurements)


def best_rows(shape: Shape, on_progress: harness.OnProgress = harness.silent) -> int:
    """The rows of a chunk with which the composition is fastest here: coarsely, then around it."""
    if missing_composition() is not None:
        return ROWS[0]
    begin = harness.counter(on_progress, 2 * len(ROWS))
    num_rows = shape.num_tokens * shape.num_components
    composition_variant(shape, min(ROWS[-1], num_rows)).prepare()()
    best, candidates = 0, ROWS
    for _ in range(2):
        counts = dict.fromkeys(min(count, num_rows) for count in candidates)
        works = {str(count): composition_variant(shape, count).prepare() for count in counts}
        times = harness.take_times(
            works, 1, lambda name: begin(f"composition, chunks of {name} rows")
        )
        best = int(min(times, key=times.__getitem__))
        candidates = (max(1, best // 2), best, best * 2)
    return best


def check_losses(shape: Shape, losses: Mapping[str, float | None]) -> dict[str, str]:
    """Raise unless all implementations yield the same loss; the original, up to its epsilon.

    Returns a note on what the epsilon does.
    """
    context, log_weight, weight, bias, target = mixture_inputs(shape)
    with torch.no_grad():
        exact, mean, _ = mixture_loss(context, log_weight, weight, target, bias=bias)
        shifted = -(EPSILON + (-exact).exp()).log().mean().item()
    for name in (name for name in IMPLEMENTATIONS if name in losses):
        want, got = shifted if name == "original" else mean.item(), losses[name]
        if got is None or not math.isclose(got, want, rel_tol=TOLERANCE):
            raise RuntimeError(
                f"loss of {name} at {shape.name} must be {want:.6f} within {TOLERANCE}, got {got}"
            )
    note = f"its epsilon changes the loss by {shifted - mean.item():.2g}"
    return {"original": note} if "original" in losses else {}


def measure_growth(
    shapes: tuple[Shape, Shape],
    chunk_bytes: int | None,
    on_progress: harness.OnProgress = harness.silent,
) -> MemoryGrowth:
    """The peak memory of `fused` at two sizes of the vocabulary."""
    begin, peaks = harness.counter(on_progress, len(shapes)), []
    for shape in shapes:
        begin(f"memory at V = {shape.vocab_size:,}")
        fused = package_variant("fused", shape, chunk_bytes)
        peaks.append(harness.peak_memory(fused.prepare, fused.warm_up))
    begin("done")
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
