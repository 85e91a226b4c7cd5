"""`bench audit`: singular values of log-probabilities without holding the matrix, against an SVD.

T contexts, V vocabulary, E embedding size of a linear head, n rows of a block.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from highrank.analysis.log_probs import head_log_probs
from highrank.analysis.rank import Spectrum, press_threshold
from highrank.analysis.svd import head_singular_values, singular_values
from highrank.environment import environment
from highrank.heads import MixtureHead, MixtureOfSoftmaxes, Softmax
from highrank.studies.bench import harness

SEED = 0
# The mixture's log-probabilities should cost little beside their singular values.
MIXTURE_SIZE, NUM_COMPONENTS = 32, 3


@dataclass(frozen=True, kw_only=True)
class Size:
    num_contexts: int
    vocab_size: int
    embedding_size: int


FULL = Size(num_contexts=20_000, vocab_size=10_000, embedding_size=280)
QUICK = Size(num_contexts=4_000, vocab_size=2_000, embedding_size=280)
TINY = Size(num_contexts=80, vocab_size=40, embedding_size=8)
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
    """What the method states: below this fraction of σ_max nothing is known."""


@dataclass(frozen=True, kw_only=True)
class AuditBenchResult(harness.BenchResult):
    size: Size
    measurements: tuple[harness.Measurement, ...]
    """The values are the largest singular values."""
    errors: dict[str, SpectrumError]
    """By variant; the linear head's at a size of its own, with an SVD of its own."""


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
    floor = press_threshold(values[0].item(), shape, eps)
    return Spectrum(values=values, shape=shape, precision=torch.float64, method="svd", floor=floor)


def streamed(head: MixtureHead, hidden: Tensor, *, method: str) -> Spectrum:
    return singular_values(head_log_probs(head, hidden), method)[-1]


def linear(head: MixtureHead, hidden: Tensor) -> Spectrum:
    return head_singular_values(head, hidden)[-1]


def log_probabilities(head: MixtureHead, hidden: Tensor) -> None:
    """Made and dropped: what all methods but the linear one do, too."""
    for _ in head_log_probs(head, hidden).blocks():
        pass


METHODS: dict[str, Callable[[MixtureHead, Tensor], Spectrum | None]] = {
    "svd": svd,
    "stable": partial(streamed, method="stable"),
    "fast": partial(streamed, method="fast"),
    "linear": linear,
    "log-probabilities": log_probabilities,
}
# About how long each takes, in units of the SVD's time: for the progress bar.
COSTS = {"svd": 1.0, "stable": 1.1, "fast": 0.25, "linear": 0.03, "log-probabilities": 0.03}


def prepare(name: str, size: Size) -> Callable[[], Spectrum | None]:
    """Make a head and hidden states; what is returned works on them."""
    make = linear_head if name == "linear" else mixture_head
    return partial(METHODS[name], *make(size))


def mixture_head(size: Size) -> tuple[MixtureHead, Tensor]:
    """A mixture of softmaxes, and hidden states (T, D)."""
    head = MixtureOfSoftmaxes(MIXTURE_SIZE, size.vocab_size, NUM_COMPONENTS, MIXTURE_SIZE)
    return _randomised(head, size.num_contexts)


def linear_head(size: Size) -> tuple[MixtureHead, Tensor]:
    """One softmax, and hidden states (T, E)."""
    return _randomised(Softmax(size.embedding_size, size.vocab_size), size.num_contexts)


def _randomised(head: MixtureHead, num_contexts: int) -> tuple[MixtureHead, Tensor]:
    """With logits of about unit size, so that no token is impossible."""
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in head.parameters():
            size = parameter.shape[-1] if parameter.dim() == 2 else 1
            parameter.normal_(0, size**-0.5, generator=random)
    return head, torch.randn(num_contexts, head.hidden_size, generator=random)


def run_audit_bench(
    *, rounds: int = 1, quick: bool = False, on_progress: harness.OnProgress = harness.silent
) -> AuditBenchResult:
    """Measure the SVD, the stable and the fast method on a mixture, and that of a linear head.

    Every method is run once for its memory, the SVD excepted, and `rounds` times for its time.
    There is no warm-up but a tiny one: at full size an SVD takes many minutes.

    Args:
        quick: a fifth of the contexts and of the vocabulary.
    """
    harness.check_rounds(rounds)
    size, start = QUICK if quick else FULL, time.monotonic()
    begin = harness.counter(on_progress, (rounds + 1) * sum(COSTS.values()) - COSTS["svd"])
    variants = {name: _variant(name, size) for name in METHODS}
    peaks, spectra = {}, {}
    for name, variant in variants.items():
        if name != "svd":
            begin(f"memory of {name}", COSTS[name])
            peaks[name] = harness.peak_memory(variant.prepare, variant.warm_up)
    for name in METHODS:
        prepare(name, TINY)()

    def keep(name: str, work: Callable[[], Spectrum | None]) -> None:
        spectra[name] = work()

    works = {name: partial(keep, name, prepare(name, size)) for name in METHODS}
    times = harness.take_times(works, rounds, lambda name: begin(f"time of {name}", COSTS[name]))
    found = {name: spectrum for name, spectrum in spectra.items() if spectrum is not None}
    largest = {name: spectrum.values[0].item() for name, spectrum in found.items()}
    return AuditBenchResult(
        size=size,
        rounds=rounds,
        elapsed=time.monotonic() - start,
        environment=environment(),
        measurements=harness.summarise(
            variants.values(), ("svd",), values=largest, times=times, peaks=peaks
        ),
        errors=spectrum_errors(found),
    )


def spectrum_errors(spectra: Mapping[str, Spectrum]) -> dict[str, SpectrumError]:
    """Of each method, by its name; of the linear one at a size at which an SVD costs little."""
    exact = spectra["svd"]
    found = {name: spectrum_error(s, exact) for name, s in spectra.items() if name != "linear"}
    head, hidden = linear_head(LINEAR_CHECK)
    return {**found, "linear": spectrum_error(linear(head, hidden), svd(head, hidden))}


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


def _variant(name: str, size: Size) -> harness.Variant:
    return harness.Variant(
        name=name,
        prepare=partial(prepare, name, size),
        warm_up=partial(prepare, name, TINY),
        note="its memory is not measured" if name == "svd" else "",
    )
