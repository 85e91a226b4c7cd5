"""The demo: three heads fitted to two languages whose true distribution is known.

Each context has a free vector of its own, so that nothing but the output layer limits a fit. The
excess over a language's entropy is computed over all contexts and tokens, not estimated.

C contexts, D hidden size, V vocabulary, K components, d the size of the vectors that meet the
output embedding.
"""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import torch
from torch import Tensor, nn

from highrank.analysis.rank import log_prob_rank
from highrank.data import Language, factorised, senses
from highrank.heads import Head, MixtureOfContexts, MixtureOfSoftmaxes, Softmax

RANK = 64
NUM_COMPONENTS = 8
LANGUAGES: dict[str, Callable[[int], Language]] = {
    "factorised": lambda seed: factorised(rank=RANK, seed=seed),
    "senses": lambda seed: senses(seed=seed),
}
# The page looks closely at a quarter of the rank; the last size is enough for one softmax.
CLOSE_UP = RANK // 4
SIZES = (8, CLOSE_UP, RANK // 2, RANK - 1)
QUICK_SIZES = (CLOSE_UP, RANK - 1)
NUM_EXAMPLE_TOKENS = 10
# Size of the free vectors; a head with a larger context gets larger ones.
HIDDEN_SIZE = 64


class Fitted(NamedTuple):
    log_prob: Tensor
    """(C, V), float64."""
    num_parameters: int
    rank_bound: int | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One head, fitted to one language by minimising the exact cross-entropy."""

    head: str
    """"softmax", "moc" or "mos"."""
    context_size: int
    num_components: int
    num_parameters: int
    """All trained numbers, the free vector of each context included."""
    matches: int | None
    """For a softmax that was made as large as the mixtures: their d. None otherwise."""
    excess: float
    """Cross-entropy minus the language's entropy rate, in nats per token. Exact, never negative."""
    rank: int
    """Numerical rank of the log-probability matrix (float64, Press threshold)."""
    rank_bound: int | None
    """The highest rank that the architecture allows; None where no bound is known."""
    singular_values: tuple[float, ...]
    """Singular values of the log-probability matrix, descending."""
    example: tuple[float, ...]
    """Probabilities of `LanguageResult.example_tokens` in the example context."""


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """A language whose true distribution is known, and the heads fitted to it."""

    name: str
    """A key of `LANGUAGES`."""
    vocab_size: int
    num_contexts: int
    rank: int
    """Numerical rank of the true log-probability matrix."""
    entropy: float
    """Exact entropy rate, in nats per token: no model's cross-entropy is lower."""
    singular_values: tuple[float, ...]
    """Singular values of the true log-probability matrix, descending."""
    example_context: int
    """Where the softmax of size `CLOSE_UP` diverges most from the truth."""
    example_tokens: tuple[int, ...]
    """The most probable tokens of the example context, in descending order."""
    example: tuple[float, ...]
    """Their true probabilities."""
    fits: tuple[Fit, ...]
    """By d: softmax, MoC, MoS, then the softmax that matches these mixtures in parameters."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    seed: int
    quick: bool
    elapsed: float
    """Seconds."""
    languages: tuple[LanguageResult, ...]


@dataclass(frozen=True)
class Task:
    """One head to be fitted to one language."""

    language: str
    head: str
    context_size: int
    matches: int | None
    seed: int
    num_steps: int

    @property
    def num_components(self) -> int:
        return 1 if self.head == "softmax" else NUM_COMPONENTS

    @property
    def cost(self) -> int:
        """Roughly proportional to the time it takes."""
        return self.num_steps * (4 + (self.num_components if self.head == "mos" else 1))


def run_demo(
    seed: int = 0,
    quick: bool = False,
    on_progress: Callable[[float, str], None] | None = None,
    num_processes: int = 2,
) -> DemoResult:
    """Fit all heads to both languages, in processes of one thread each.

    Args:
        seed: draws the languages and the starting points.
        quick: fewer sizes and fewer steps.
        on_progress: called with the fraction of the work done and what was finished.
        num_processes: they do not change the numbers.
    """
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be between 0 and {(1 << 63) - 1}, got {seed}")
    start = time.monotonic()
    tasks = list(plan(seed, quick))
    total, done = sum(task.cost for task in tasks), 0
    fitted: dict[Task, Fitted] = {}
    for task, found in _in_processes(tasks, num_processes):
        fitted[task] = found
        done += task.cost
        if on_progress is not None:
            on_progress(done / total, f"{task.language}: {task.head}, d = {task.context_size}")
    languages = tuple(
        _language_result(name, make(seed), {t: fitted[t] for t in tasks if t.language == name})
        for name, make in LANGUAGES.items()
    )
    return DemoResult(seed=seed, quick=quick, elapsed=time.monotonic() - start, languages=languages)


def plan(seed: int, quick: bool) -> Iterator[Task]:
    """Every head at every size, and for each mixture a softmax with as many parameters."""
    num_steps = 300 if quick else 1000
    for name, make in LANGUAGES.items():
        language = make(seed)
        for size in QUICK_SIZES if quick else SIZES:
            for head in ("softmax", "moc", "mos"):
                yield Task(name, head, size, None, seed, num_steps)
            matching = matching_softmax_size(size, language.num_contexts, language.vocab_size)
            yield Task(name, "softmax", matching, size, seed, num_steps)


def matching_softmax_size(context_size: int, num_contexts: int, vocab_size: int) -> int:
    """The d at which a softmax has about as many parameters as a mixture of this context size."""

    def size(kind: str, d: int) -> int:
        head = make_head(kind, d, NUM_COMPONENTS, vocab_size, device="meta")
        return count_parameters(head, num_contexts)

    wanted = size("mos", context_size)
    return min(range(1, vocab_size), key=lambda d: abs(size("softmax", d) - wanted))


def fit_head(
    language: Language,
    kind: str,
    context_size: int,
    num_components: int,
    seed: int,
    num_steps: int = 1000,
) -> Fitted:
    """Adam with a cosine schedule on the exact cross-entropy, over all contexts at once."""
    torch.manual_seed(seed)
    head = make_head(kind, context_size, num_components, language.vocab_size)
    hidden = nn.Parameter(torch.randn(language.num_contexts, head.hidden_size))  # (C, D)
    joint = torch.from_numpy(language.stationary[:, None] * language.prob).float()  # (C, V)
    optimizer = torch.optim.Adam([hidden, *head.parameters()], lr=0.15)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = -(joint * head.log_prob(hidden)).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        log_prob = head.double().log_prob(hidden.double())  # (C, V)
    return Fitted(log_prob, count_parameters(head, language.num_contexts), head.rank_bound)


def make_head(
    kind: str, context_size: int, num_components: int, vocab_size: int, device: str | None = None
) -> Head:
    """A softmax, MoC or MoS with linear contexts."""
    sizes = (max(HIDDEN_SIZE, context_size), vocab_size)
    if kind == "softmax":
        return Softmax(*sizes, context_size, activation="identity", device=device)
    mixture = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}[kind]
    return mixture(*sizes, num_components, context_size, activation="identity", device=device)


def count_parameters(head: Head, num_contexts: int) -> int:
    """All trained numbers: the head's, and the free vector of each context."""
    return num_contexts * head.hidden_size + sum(p.numel() for p in head.parameters())


def fit(task: Task) -> Fitted:
    language, sizes = LANGUAGES[task.language](task.seed), (task.context_size, task.num_components)
    return fit_head(language, task.head, *sizes, task.seed, task.num_steps)


def _in_processes(tasks: list[Task], num_processes: int) -> Iterator[tuple[Task, Fitted]]:
    """Fits as they are finished; the longest are started first."""
    context = get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_worker)
    try:
        by_cost = sorted(tasks, key=lambda task: task.cost, reverse=True)
        futures = {pool.submit(fit, task): task for task in by_cost}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise MemoryError(
            "a process that fitted a head was ended by the system: fewer --threads need less"
        ) from None
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _language_result(name: str, language: Language, fitted: dict[Task, Fitted]) -> LanguageResult:
    true = torch.from_numpy(language.log_prob)  # (C, V)
    close_up = next(
        found.log_prob
        for task, found in fitted.items()
        if (task.head, task.context_size, task.matches) == ("softmax", CLOSE_UP, None)
    )
    example = int((true.exp() * (true - close_up)).sum(-1).argmax())
    tokens = true[example].topk(NUM_EXAMPLE_TOKENS).indices
    rank, singular_values = log_prob_rank(true)
    return LanguageResult(
        name=name,
        vocab_size=language.vocab_size,
        num_contexts=language.num_contexts,
        rank=rank,
        entropy=language.entropy,
        singular_values=tuple(singular_values.tolist()),
        example_context=example,
        example_tokens=tuple(tokens.tolist()),
        example=tuple(true[example, tokens].exp().tolist()),
        fits=tuple(
            _fit_result(task, found, language, found.log_prob[example, tokens])
            for task, found in fitted.items()
        ),
    )


def _fit_result(task: Task, fitted: Fitted, language: Language, example: Tensor) -> Fit:
    rank, singular_values = log_prob_rank(fitted.log_prob)
    return Fit(
        head=task.head,
        context_size=task.context_size,
        num_components=task.num_components,
        num_parameters=fitted.num_parameters,
        matches=task.matches,
        excess=language.excess(fitted.log_prob.numpy()),
        rank=rank,
        rank_bound=fitted.rank_bound,
        singular_values=tuple(singular_values.tolist()),
        example=tuple(example.exp().tolist()),
    )
