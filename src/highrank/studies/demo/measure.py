"""What the demo measured: plain data, made by `demo.py`, shown by `reports/demo.py`.

The demo: three heads against two languages whose true distribution is known.

Each context of a language has a free vector of its own, so that nothing but the output layer limits
a fit. The exact cross-entropy over all contexts is minimised: there is no sampling noise, and the
excess over the language's entropy is computed, not estimated.
"""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from highrank.analysis.rank import log_prob_rank
from highrank.data import Language, factorised, senses
from highrank.heads import Head, MixtureOfContexts, MixtureOfSoftmaxes, Softmax


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One head, fitted to one language by minimising the exact cross-entropy."""

    head: str
    """"softmax", "moc" or "mos"."""
    context_size: int
    """Size d of the vectors that meet the output embedding."""
    num_components: int
    """K; 1 for a softmax."""
    num_parameters: int
    """All trained numbers, the free vector of each context included."""
    matches: int | None
    """For a softmax that was made as large as a mixture: the mixture's d. None otherwise."""
    excess: float
    """Cross-entropy minus the language's entropy rate, in nats per token. Exact, never negative."""
    rank: int
    """Numerical rank of the log-probability matrix (float64, Press threshold)."""
    rank_bound: int | None
    """What the architecture allows; None where no bound is known."""
    singular_values: tuple[float, ...]
    """Of the log-probability matrix, descending."""
    example: tuple[float, ...]
    """Probabilities of `LanguageResult.example_words` in the example context."""


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """A language whose true distribution is known, and the heads fitted to it."""

    name: str
    """"factorised" or "senses"."""
    vocab_size: int
    num_contexts: int
    rank: int
    """Numerical rank of the true log-probability matrix."""
    entropy: float
    """Exact entropy rate, in nats per token: the floor of every model's cross-entropy."""
    singular_values: tuple[float, ...]
    """Of the true log-probability matrix, descending."""
    example_context: int
    """Where the softmax of the close-up size is worst: the largest divergence from the truth."""
    example_words: tuple[int, ...]
    """The likeliest words of the example context, likeliest first."""
    example: tuple[float, ...]
    """Their true probabilities."""
    fits: tuple[Fit, ...]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    seed: int
    quick: bool
    elapsed: float
    """Seconds."""
    languages: tuple[LanguageResult, ...]


RANK = 64
NUM_COMPONENTS = 8
# Of the free vector of each context; a softmax with a larger d gets a larger one.
HIDDEN_SIZE = 64
LANGUAGES: dict[str, Callable[[int], Language]] = {
    "factorised": lambda seed: factorised(rank=RANK, seed=seed),
    "senses": lambda seed: senses(seed=seed),
}
# The close-up of the page is at a quarter of the rank; the last size is enough for one softmax.
CLOSE_UP = RANK // 4
SIZES = (8, CLOSE_UP, RANK // 2, RANK - 1)
QUICK_SIZES = (CLOSE_UP, RANK - 1)
EXAMPLE_WORDS = 10


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


@dataclass(frozen=True)
class Fitted:
    log_prob: Tensor
    """(C, V), float64."""
    num_parameters: int
    rank_bound: int | None


def run_demo(
    seed: int = 0, quick: bool = False, on_progress: Callable[[float, str], None] | None = None
) -> DemoResult:
    """Fit all heads to both languages, in two processes of one thread each.

    Args:
        seed: draws the languages and the starting points.
        quick: fewer sizes and fewer steps.
        on_progress: called with the share of the work done and what was finished.
    """
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be between 0 and {(1 << 63) - 1}, got {seed}")
    start = time.monotonic()
    tasks = list(plan(seed, quick))
    total, done = sum(task.cost for task in tasks), 0
    fitted: dict[Task, Fitted] = {}
    for task, fit in _in_processes(tasks):
        fitted[task] = fit
        done += task.cost
        if on_progress is not None:
            on_progress(done / total, f"{task.language}: {task.head}, d = {task.context_size}")
    languages = tuple(
        _language_result(name, make(seed), [(t, fitted[t]) for t in tasks if t.language == name])
        for name, make in LANGUAGES.items()
    )
    return DemoResult(seed=seed, quick=quick, elapsed=time.monotonic() - start, languages=languages)


def plan(seed: int, quick: bool) -> Iterator[Task]:
    """Every head at every size, and for each mixture a softmax with as many parameters."""
    num_steps = 300 if quick else 1000
    for language in LANGUAGES:
        made = LANGUAGES[language](seed)
        for size in QUICK_SIZES if quick else SIZES:
            for head in ("softmax", "moc", "mos"):
                yield Task(language, head, size, None, seed, num_steps)
            matching = matching_softmax_size(size, made.num_contexts, made.vocab_size)
            yield Task(language, "softmax", matching, size, seed, num_steps)


def matching_softmax_size(context_size: int, num_contexts: int, vocab_size: int) -> int:
    """The context size at which a softmax has about as many parameters as the mixture."""
    wanted = _num_parameters("mos", context_size, num_contexts, vocab_size)
    return min(
        range(1, vocab_size),
        key=lambda d: abs(_num_parameters("softmax", d, num_contexts, vocab_size) - wanted),
    )


def _num_parameters(kind: str, context_size: int, num_contexts: int, vocab_size: int) -> int:
    head = _make_head(kind, context_size, vocab_size, device="meta")
    return num_contexts * head.hidden_size + sum(p.numel() for p in head.parameters())


def fit(task: Task) -> Fitted:
    language = LANGUAGES[task.language](task.seed)
    sizes = (task.context_size, task.num_components)
    return fit_head(language, task.head, *sizes, task.seed, task.num_steps)


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
    head = _make_head(kind, context_size, language.vocab_size, num_components)
    hidden = nn.Parameter(torch.randn(language.num_contexts, head.hidden_size))  # (C, D)
    joint = torch.from_numpy(language.stationary[:, None] * language.prob).float()  # (C, V)
    parameters = [hidden, *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.15)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = -(joint * head.log_prob(hidden)).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        log_prob = head.double().log_prob(hidden.double())  # (C, V)
    return Fitted(log_prob, sum(p.numel() for p in parameters), head.rank_bound)


def _make_head(
    kind: str,
    context_size: int,
    vocab_size: int,
    num_components: int = NUM_COMPONENTS,
    device: str | None = None,
) -> Head:
    sizes = (max(HIDDEN_SIZE, context_size), vocab_size)
    if kind == "softmax":
        return Softmax(*sizes, context_size, activation="identity", device=device)
    mixture = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}[kind]
    return mixture(*sizes, num_components, context_size, activation="identity", device=device)


def _in_processes(tasks: list[Task]) -> Iterator[tuple[Task, Fitted]]:
    """Fits as they are finished; the longest are started first."""
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        by_cost = sorted(tasks, key=lambda task: task.cost, reverse=True)
        futures = {pool.submit(fit, task): task for task in by_cost}
        for future in as_completed(futures):
            yield futures[future], future.result()
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


def _language_result(
    name: str, language: Language, fits: list[tuple[Task, Fitted]]
) -> LanguageResult:
    true = torch.from_numpy(language.log_prob)  # (C, V)
    close_up = next(
        f for t, f in fits if (t.head, t.context_size, t.matches) == ("softmax", CLOSE_UP, None)
    )
    divergence = (true.exp() * (true - close_up.log_prob)).sum(-1)  # (C,)
    example = int(divergence.argmax())
    words = true[example].topk(EXAMPLE_WORDS).indices
    rank, singular_values = log_prob_rank(true)
    return LanguageResult(
        name=name,
        vocab_size=language.vocab_size,
        num_contexts=language.num_contexts,
        rank=rank,
        entropy=language.entropy,
        singular_values=tuple(singular_values.tolist()),
        example_context=example,
        example_words=tuple(words.tolist()),
        example=tuple(true[example, words].exp().tolist()),
        fits=tuple(
            _fit_result(task, fit, language, fit.log_prob[example, words]) for task, fit in fits
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
