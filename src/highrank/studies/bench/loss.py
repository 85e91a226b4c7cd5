"""`bench loss`: one forward and backward pass through the mixture's loss, by all variants.

Every implementation of the loss is checked against the others, on the inputs that are timed,
before any time is taken.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import (
    EPSILON,
    GROWTH,
    SHAPES,
    Shape,
    composition_loss,
    missing_composition,
    mixture_inputs,
    prepare,
    variants,
)

# All of the same loss; the other variants are a lower bound and a smaller model.
IMPLEMENTATIONS = ("fused", "chunked", "compiled", "composition", "original", "log-space")
TOLERANCE = 1e-4
# Rows of a chunk of the composition that are tried.
ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
# Bytes that may grow with the vocabulary, besides the weight's gradient.
GROWTH_ALLOWANCE = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class LossBenchResult(harness.BenchResult):
    quick: bool
    chunk_bytes: int | None
    shapes: dict[str, Shape]
    """By the name of a group."""
    growth: tuple[harness.Peak, harness.Peak]
    """Peak memory of `fused` at the vocabularies of `GROWTH`."""


def run_loss_bench(
    names: Sequence[str] = (),
    *,
    rounds: int = 5,
    quick: bool = False,
    chunk_bytes: int | None = None,
    on_progress: OnProgress = harness.silent,
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
    shapes, start = {shape.name: shape for shape in select_shapes(names, quick)}, time.monotonic()
    groups = {}
    for name, shape in shapes.items():
        on_progress(0.0, f"chunks of the composition at {name}")
        groups[name] = variants(shape, chunk_bytes, best_rows(shape))
    result = harness.measure(
        groups,
        title="Time and memory of the mixture's loss",
        method=(
            "One forward and backward pass, float32. matmul: the matmul lower bound, three matrix "
            "multiplies alone. softmax: one softmax with as many parameters."
        ),
        baselines=("matmul", "fused"),
        rounds=min(rounds, 2) if quick else rounds,
        check=lambda name, losses: check_losses(shapes[name], losses),
        on_progress=on_progress,
    )
    mixture_inputs.cache_clear()
    on_progress(1.0, "memory of two vocabularies")
    return LossBenchResult(
        **vars(replace(result, elapsed=time.monotonic() - start)),
        quick=quick,
        chunk_bytes=chunk_bytes,
        shapes=shapes,
        growth=measure_growth(GROWTH, chunk_bytes),
    )


def select_shapes(names: Sequence[str], quick: bool) -> list[Shape]:
    """The shapes of these names, with a tenth of their tokens if `quick`."""
    for name in names:
        if name not in SHAPES:
            raise ValueError(f"shapes must be among {', '.join(SHAPES)}, got {name}")
    names = names or list(SHAPES)[: 1 if quick else None]
    shapes = [SHAPES[name] for name in dict.fromkeys(names)]
    return [replace(s, num_tokens=-(-s.num_tokens // 10)) for s in shapes] if quick else shapes


def best_rows(shape: Shape) -> int:
    """The rows of a chunk with which the composition is fastest here."""
    if missing_composition() is not None:
        return ROWS[0]
    num_rows = shape.num_tokens * shape.num_components
    counts = sorted({min(rows, num_rows) for rows in ROWS})
    works = {str(rows): prepare(partial(composition_loss, rows), shape) for rows in counts}
    # A warm-up.
    works[str(counts[-1])]()
    times = harness.take_times(works, 1)
    return int(min(times, key=times.__getitem__))


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
    shapes: tuple[Shape, Shape], chunk_bytes: int | None
) -> tuple[harness.Peak, harness.Peak]:
    """Peak memory of `fused` at two sizes of the vocabulary."""
    small, large = (variants(shape, chunk_bytes, ROWS[0])[1] for shape in shapes)
    return (
        harness.peak_memory(small.prepare, small.warm_up),
        harness.peak_memory(large.prepare, large.warm_up),
    )


def allowed_growth(shapes: tuple[Shape, Shape]) -> int:
    """Bytes by which the gradient of the weight grows, and 32 MiB."""
    small, large = shapes
    return 4 * (large.vocab_size - small.vocab_size) * large.embedding_size + GROWTH_ALLOWANCE
