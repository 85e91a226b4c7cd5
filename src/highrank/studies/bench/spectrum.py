"""The ways to the singular values of log-probabilities, from a head and its hidden states.

T contexts, V words, E size of a linear head's context, n rows of a block.

`bench audit`: singular values without holding the matrix, against an SVD of it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from highrank.analysis.log_probs import head_log_probs
from highrank.analysis.rank import Spectrum, press_threshold
from highrank.analysis.svd import head_singular_values, singular_values
from highrank.environment import Environment, environment
from highrank.heads import MixtureHead, MixtureOfSoftmaxes, Softmax
from highrank.studies.bench.harness import (
    Measurement,
    OnProgress,
    Peak,
    peak_memory,
    take_times,
    with_ratios,
)

SEED = 0
# The mixture's log-probabilities should cost little beside their singular values.
MIXTURE_SIZE, NUM_COMPONENTS = 32, 3


@dataclass(frozen=True, kw_only=True)
class Size:
    num_contexts: int
    """T."""
    vocab_size: int
    """V."""
    embedding_size: int
    """E."""


FULL = Size(num_contexts=20_000, vocab_size=10_000, embedding_size=280)
QUICK = Size(num_contexts=4_000, vocab_size=2_000, embedding_size=280)
TINY = Size(num_contexts=80, vocab_size=40, embedding_size=8)


def svd(head: MixtureHead, hidden: Tensor) -> Spectrum:
    """The whole matrix, and an SVD of it without vectors."""
    source = head_log_probs(head, hidden)
    matrix = torch.empty(source.num_contexts, source.vocab_size, dtype=torch.float64)  # (T, V)
    row = 0
    for block in source.blocks():  # (n, V)
        matrix[row : row + len(block)] = block
        row += len(block)
    values = torch.linalg.svdvals(matrix)
    shape, eps = (len(matrix), source.vocab_size), torch.finfo(torch.float64).eps
    return Spectrum(
        values=values,
        shape=shape,
        precision=torch.float64,
        method="svd",
        floor=press_threshold(values[0].item(), shape, eps),
    )


def streamed(method: str, head: MixtureHead, hidden: Tensor) -> Spectrum:
    return singular_values(head_log_probs(head, hidden), method)[-1]


def linear(head: MixtureHead, hidden: Tensor) -> Spectrum:
    return head_singular_values(head, hidden)[-1]


def log_probabilities(head: MixtureHead, hidden: Tensor) -> None:
    """Made and dropped: what all ways but the linear one do, too."""
    for _ in head_log_probs(head, hidden).blocks():
        pass


WAYS: dict[str, Callable[[MixtureHead, Tensor], Spectrum | None]] = {
    "svd": svd,
    "stable": partial(streamed, "stable"),
    "fast": partial(streamed, "fast"),
    "linear": linear,
    "log-probabilities": log_probabilities,
}


def prepare(name: str, size: Size) -> Callable[[], Spectrum | None]:
    """Make a head and hidden states; what is returned works on them."""
    make = linear_head if name == "linear" else mixture_head
    return partial(WAYS[name], *make(size))


def mixture_head(size: Size) -> tuple[MixtureHead, Tensor]:
    """A mixture of softmaxes, and hidden states (T, D)."""
    head = MixtureOfSoftmaxes(MIXTURE_SIZE, size.vocab_size, NUM_COMPONENTS, MIXTURE_SIZE)
    return _randomised(head, size.num_contexts)


def linear_head(size: Size) -> tuple[MixtureHead, Tensor]:
    """One softmax, and hidden states (T, E)."""
    return _randomised(Softmax(size.embedding_size, size.vocab_size), size.num_contexts)


def _randomised(head: MixtureHead, num_contexts: int) -> tuple[MixtureHead, Tensor]:
    """With logits of about unit size, so that no word is out of reach."""
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in head.parameters():
            size = parameter.shape[-1] if parameter.dim() == 2 else 1
            parameter.normal_(0, size**-0.5, generator=random)
    return head, torch.randn(num_contexts, head.hidden_size, generator=random)


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
    """By variant; the linear head's at a size of its own, with an SVD of its own."""


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
