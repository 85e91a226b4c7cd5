"""`bench audit`: singular values without holding the matrix, against an SVD of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from highrank.analysis.rank import press_threshold
from highrank.analysis.spectrum import Spectrum
from highrank.environment import Environment, environment
from highrank.experiments.bench.audit_contestants import (
    FULL,
    QUICK,
    TINY,
    WAYS,
    Size,
    linear,
    linear_head,
    prepare,
    svd,
)
from highrank.experiments.bench.harness import OnProgress, take_times, with_ratios
from highrank.experiments.bench.memory import Peak, peak_memory
from highrank.experiments.bench.result import Measurement

# About how long each takes, in units of the SVD's time: for the progress bar.
COSTS = {"svd": 1.0, "stable": 1.1, "fast": 0.25, "linear": 0.03, "log-probabilities": 0.03}
# Where the linear head's values are compared with those of an SVD.
LINEAR_CHECK = Size(num_contexts=1_500, vocab_size=1_000, embedding_size=280)


@dataclass(frozen=True, kw_only=True)
class SpectrumError:
    """Against the SVD of the same matrix."""

    absolute: float
    """The largest difference, divided by σ_max."""
    relative: float
    """The largest difference divided by σ, above float32's Press threshold."""
    floor: float
    """What the method states: below this share of σ_max nothing is known."""


@dataclass(frozen=True, kw_only=True)
class AuditBenchResult:
    size: Size
    rounds: int
    elapsed: float
    """Seconds."""
    environment: Environment
    measurements: tuple[Measurement, ...]
    """The values are the largest singular values."""
    errors: dict[str, SpectrumError]
    """By contestant; the linear head's at a size of its own, with an SVD of its own."""


def run_audit_bench(
    *, rounds: int = 1, quick: bool = False, on_progress: OnProgress | None = None
) -> AuditBenchResult:
    """Measure the SVD, the stable and the fast way on a mixture, and the way of a linear head.

    Every way is done once for its memory, the SVD excepted, and `rounds` times for its time. There
    is no warm-up but a tiny one: at full size an SVD takes many minutes.

    Args:
        quick: a fifth of the contexts and of the words.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    size, start = QUICK if quick else FULL, time.monotonic()
    show = _by_cost(on_progress, rounds)
    peaks = {}
    for name in WAYS:
        if name != "svd":
            show(name, "memory")
            peaks[name] = peak_memory(partial(prepare, name, size), partial(prepare, name, TINY))
    spectra: dict[str, Spectrum | None] = {}
    for name in WAYS:
        prepare(name, TINY)()
    works = {name: _keeping(spectra, name, prepare(name, size)) for name in WAYS}
    times = take_times(works, rounds, lambda name: show(name, "time"))
    measurements = [
        _measurement(name, spectra[name], times[name], peaks.get(name)) for name in WAYS
    ]
    exact = spectra["svd"]
    assert exact is not None
    errors = {
        name: spectrum_error(spectrum, exact)
        for name, spectrum in spectra.items()
        if spectrum is not None and name != "linear"
    }
    return AuditBenchResult(
        size=size,
        rounds=rounds,
        elapsed=time.monotonic() - start,
        environment=environment(),
        measurements=with_ratios(measurements, ("svd",)),
        errors={**errors, "linear": _linear_error()},
    )


def spectrum_error(found: Spectrum, exact: Spectrum) -> SpectrumError:
    """Values that were left out count as zeros."""
    values = torch.zeros_like(exact.values)
    values[: len(found.values)] = found.values
    difference, largest = (values - exact.values).abs(), exact.values[0].item()
    eps = torch.finfo(torch.float32).eps
    counted = exact.values > press_threshold(largest, exact.shape, eps)
    return SpectrumError(
        absolute=difference.max().item() / largest,
        relative=(difference / exact.values)[counted].max().item(),
        floor=found.floor / largest,
    )


def _linear_error() -> SpectrumError:
    head, hidden = linear_head(LINEAR_CHECK)
    return spectrum_error(linear(head, hidden), svd(head, hidden))


def _measurement(
    name: str, spectrum: Spectrum | None, times: tuple[float, ...], peak: Peak | None
) -> Measurement:
    return Measurement(
        name=name,
        note="its memory is not measured" if peak is None else "",
        value=None if spectrum is None else spectrum.values[0].item(),
        times=times,
        best=min(times),
        peak_bytes=None if peak is None else peak.num_bytes,
        time_ratios={},
        memory_ratios={},
        failure=None if peak is None else peak.failure,
    )


def _keeping(
    spectra: dict[str, Spectrum | None], name: str, work: Callable[[], Spectrum | None]
) -> Callable[[], None]:
    def keep() -> None:
        spectra[name] = work()

    return keep


def _by_cost(on_progress: OnProgress | None, rounds: int) -> Callable[[str, str], None]:
    """To be called when a piece of work begins: the share is that of the work before it."""
    total, done = (rounds + 1) * sum(COSTS.values()) - COSTS["svd"], 0.0

    def show(name: str, what: str) -> None:
        nonlocal done
        if on_progress is not None:
            on_progress(done / total, f"{what} of {name}")
        done += COSTS[name]

    return show
