"""What `bench loss` measured: plain data, made by `loss.py`, shown by `reports/bench.py`."""

from dataclasses import dataclass

from highrank.environment import Environment
from highrank.experiments.bench.loss_inputs import Shape
from highrank.experiments.bench.result import Measurement


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
