"""Singular values of log-probabilities without holding the matrix, against an SVD of it.

python benchmarks/audit.py
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import tyro
from torch import Tensor

from highrank.analysis.log_probs import head_log_probs
from highrank.analysis.rank import Spectrum, press_threshold
from highrank.analysis.svd import head_singular_values, singular_values
from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.heads import MixtureHead, MixtureOfSoftmaxes, Softmax
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.page import bench_table

SEED = 0
# The mixture's log-probabilities should cost little beside their singular values.
MIXTURE_SIZE, NUM_COMPONENTS, LINEAR_SIZE = 32, 3, 280
# Contexts and words: for a warm-up, and where the linear head is compared with an SVD.
TINY, LINEAR_CHECK = (80, 40), (1_500, 1_000)
ERRORS = ("error ÷ σ_max", "error ÷ σ", "floor ÷ σ_max")


def audit(
    *,
    contexts: int = 20_000,
    vocab_size: int = 10_000,
    rounds: int = 1,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare singular values without holding the matrix with an SVD of it.

    At full size it takes half an hour or more.

    Args:
        contexts: Rows of the matrix.
        vocab_size: Columns of the matrix.
        rounds: How often each variant's time is taken; the best counts.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    harness.check_rounds(rounds)
    set_threads(threads)
    start = time.monotonic()
    with progress("Measuring an audit") as on_progress:
        group = compare((contexts, vocab_size), rounds, on_progress)
    result = harness.BenchResult(
        title=f"Singular values of log-probabilities: {contexts:,} × {vocab_size:,}",
        method=(
            "error: the largest difference from the svd, as a fraction of the largest singular "
            "value, and of each one above float32's round-off. floor: smaller values are unknown "
            f"to the method. linear: another matrix, of one softmax with E = {LINEAR_SIZE}; its "
            f"errors are those of {LINEAR_CHECK[0]:,} contexts × {LINEAR_CHECK[1]:,} words."
        ),
        baselines=("svd",),
        rounds=rounds,
        groups=(group,),
        elapsed=time.monotonic() - start,
    )
    show(result, bench_table, json=json)


def compare(size: tuple[int, int], rounds: int, on_progress: OnProgress) -> harness.Group:
    """Run methods once for their memory, the SVD excepted, and `rounds` times for their times."""
    begin = harness.counter(on_progress, (rounds + 1) * len(METHODS) - 1)
    peaks, spectra = {}, {}
    for name in METHODS:
        if name != "svd":
            begin(f"memory of {name}")
            tiny = partial(prepare, name, TINY)
            peaks[name] = harness.peak_memory(partial(prepare, name, size), tiny)
        prepare(name, TINY)()

    def keep(name: str, work: Callable[[], Spectrum]) -> None:
        spectra[name] = work()

    works = {name: partial(keep, name, prepare(name, size)) for name in METHODS}
    times = harness.take_times(works, rounds, lambda name: begin(f"time of {name}"))
    largest = {name: spectrum.values[0].item() for name, spectrum in spectra.items()}
    small = make_linear_head(LINEAR_CHECK)
    pairs = {name: (spectrum, spectra["svd"]) for name, spectrum in spectra.items()}
    pairs["linear"] = METHODS["linear"](*small), svd(*small)
    errors = {name: spectrum_errors(*pair) for name, pair in pairs.items()}
    numbers = {key: {name: found[key] for name, found in errors.items()} for key in ERRORS}
    variants = [harness.Variant(name=name, prepare=lambda: float) for name in METHODS]
    found = harness.summarise(variants, ("svd",), values=largest, times=times, peaks=peaks)
    return harness.Group(name="", measurements=found, numbers=numbers)


def spectrum_errors(found: Spectrum, exact: Spectrum) -> dict[str, float | None]:
    """The numbers of `ERRORS`; values that were left out count as zeros."""
    values = torch.zeros_like(exact.values)
    values[: len(found.values)] = found.values
    difference, largest = (values - exact.values).abs(), exact.values[0].item()
    threshold = press_threshold(largest, exact.shape, torch.finfo(torch.float32).eps)
    relative = (difference / exact.values)[exact.values > threshold].max().item()
    absolute = difference.max().item() / largest
    return dict(zip(ERRORS, (absolute, relative, found.floor / largest), strict=True))


def prepare(name: str, size: tuple[int, int]) -> Callable[[], Spectrum]:
    """Make a head and hidden states; what is returned works on them."""
    make = make_linear_head if name == "linear" else make_mixture
    return partial(METHODS[name], *make(size))


def make_mixture(size: tuple[int, int]) -> tuple[MixtureHead, Tensor]:
    head = MixtureOfSoftmaxes(MIXTURE_SIZE, size[1], NUM_COMPONENTS, MIXTURE_SIZE)
    return randomise(head, size[0])


def make_linear_head(size: tuple[int, int]) -> tuple[MixtureHead, Tensor]:
    return randomise(Softmax(LINEAR_SIZE, size[1]), size[0])


def randomise(head: MixtureHead, num_contexts: int) -> tuple[MixtureHead, Tensor]:
    """The head with logits of about unit size, so that no token is impossible; hidden states."""
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in head.parameters():
            size = parameter.shape[-1] if parameter.dim() == 2 else 1
            parameter.normal_(0, size**-0.5, generator=random)
    return head, torch.randn(num_contexts, head.hidden_size, generator=random)


def svd(head: MixtureHead, hidden: Tensor) -> Spectrum:
    """The whole matrix, and an SVD of it without vectors."""
    matrix = torch.cat(list(head_log_probs(head, hidden).blocks()))  # (contexts, V)
    values, shape = torch.linalg.svdvals(matrix), (matrix.shape[0], matrix.shape[1])
    floor = press_threshold(values[0].item(), shape, torch.finfo(torch.float64).eps)
    return Spectrum(values=values, shape=shape, precision=torch.float64, method="svd", floor=floor)


METHODS: dict[str, Callable[[MixtureHead, Tensor], Spectrum]] = {
    "svd": svd,
    "stable": lambda *inputs: singular_values(head_log_probs(*inputs), "stable")[-1],
    "fast": lambda *inputs: singular_values(head_log_probs(*inputs), "fast")[-1],
    "linear": lambda *inputs: head_singular_values(*inputs)[-1],
}

if __name__ == "__main__":
    tyro.cli(audit, config=(tyro.conf.FlagCreatePairsOff,))
