"""Runs of variants, trained in turns: in this process or in several with a core and a thread each.

A run is trained in slices, and measured after equal tokens and after equal time. Everything that it
has come to is in its `metrics.jsonl`, and the checkpoint has the same lines: a comparison that is
killed resumes where each run was, and a report needs no model. The runs of a seed take turns, so
that a busy machine is the same for all. A signal stops every process: a run in training is saved
after the window that it is in, and what is being measured will be measured again.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.components import mixture_use
from highrank.analysis.log_probs import matrix_log_probs
from highrank.analysis.rank import measure_ranks
from highrank.analysis.svd import singular_values
from highrank.environment import check_device, set_threads
from highrank.evaluation.check import quick_check
from highrank.evaluation.static import evaluate
from highrank.files import clear_temporaries
from highrank.models.language_model import LanguageModel
from highrank.progress import OnProgress
from highrank.run.folder import FILES
from highrank.signatures import import_kind
from highrank.studies.compare.baselines import evaluate_baselines
from highrank.studies.compare.plan import NUM_POINTS, Plan, Regime, available_cores
from highrank.studies.compare.presets import open_source
from highrank.studies.compare.record import RunRecord, RunState, read_runs
from highrank.training.session import open_session
from highrank.training.signals import Stopped, listening, stop
from highrank.training.trainer import Diverged

# Validations are at √2, 2, 2√2 … times and fractions of the tokens that are compared.
FACTOR = 2**0.5
# Contexts of valid after which ranks are measured, and how many are read at once.
NUM_CONTEXTS, WINDOW = 500, 100
RANKS = ("numerical_rank_float32", "effective_rank_1e-2", "effective_rank_1e-3")
# A run is trained in so many turns, of so many seconds at least.
NUM_TURNS, SHORTEST_TURN = 8, 2.0
# Seconds between two looks at the signals.
PATIENCE = 0.5


class VariantRun:
    """A run of a variant, open to be trained."""

    def __init__(self, plan: Plan, folder: Path, index: int, seed: int) -> None:
        self.plan, self.variant = plan, plan.variants[index]
        self.corpus = open_source(plan.corpus, plan.max_tokens)
        self.run = open_session(
            self.variant.run_config(seed),
            self.corpus,
            plan.run_folder(folder, index, seed),
            device=plan.device,
        )
        lines = self.run.log.read()
        self.marks = {line["regime"] for line in lines if line["event"] == "mark"}
        self.events = {line["event"] for line in lines}
        tokens = [line["tokens"] for line in lines if line["event"] == "epoch"]
        self.validated = max(tokens, default=0)
        self.slices = [line for line in lines if line["event"] == "slice"]

    def advance(self, cpu_seconds: float) -> RunState:
        """Train for about so long, and measure what is due. Raises `Stopped` if a signal came."""
        try:
            state = self._advance(self.run.clock.cpu_seconds + cpu_seconds)
        except Diverged as error:
            self._note_slice()
            self.run.note(event="diverged", **self._position(), reason=str(error))
            self.run.save()
            state = RunState.DIVERGED
        self._note_slice()
        if self.run.stop_signal is not None:
            raise Stopped(self.run.stop_signal)
        return state

    def _note_slice(self) -> None:
        """Note what was trained since the last slice, in a turn that was killed, too."""
        now = {"tokens": self.run.num_tokens, **self._times()}
        new = {name: now[name] - sum(line[name] for line in self.slices) for name in now}
        if new["tokens"] > 0:
            self.run.note(event="slice", **new)
            self.run.save()
            self.slices.append(new)

    def _position(self) -> dict[str, int]:
        return {"step": self.run.trainer.num_steps, "tokens": self.run.num_tokens}

    def _times(self) -> dict[str, float]:
        clock = self.run.clock
        return {"cpu_seconds": clock.cpu_seconds, "seconds": clock.window_seconds}

    def _advance(self, limit: float) -> RunState:
        if "diverged" in self.events:
            return RunState.DIVERGED
        while not set(self.plan.regimes) <= self.marks:
            if (due := self._due()) is not None:
                self._mark(due)
            elif self.run.clock.cpu_seconds >= limit:
                return RunState.UNFINISHED
            else:
                self.run.go(
                    pause_when=lambda: (
                        self._due() is not None or self.run.clock.cpu_seconds >= limit
                    ),
                    validate_when=self._is_point_due,
                )
                if self.run.stop_signal is not None:
                    return RunState.UNFINISHED
        if "analysis" not in self.events:
            # The last line is that of the end: a run that has it is not opened again.
            self._note_slice()
            self._analyse()
        return RunState.FINISHED

    def _due(self) -> Regime | None:
        """The regime whose tokens, or whose time, the run has reached."""
        run, plan = self.run, self.plan
        if Regime.TOKENS not in self.marks and run.num_tokens >= plan.num_tokens:
            return Regime.TOKENS
        if plan.cpu_seconds is None or Regime.TIME in self.marks:
            return None
        return Regime.TIME if run.clock.cpu_seconds >= plan.cpu_seconds else None

    def _is_point_due(self) -> bool:
        tokens = self.run.num_tokens
        if tokens < next_point(self.plan.num_tokens, self.validated):
            return False
        self.validated = tokens
        return True

    def _mark(self, regime: Regime) -> None:
        """Measure the best model so far on test and on as many training tokens as valid has."""
        run = self.run
        if run.validated_step != run.trainer.num_steps:
            run.validate()
            self.validated = run.num_tokens
        piece, more = self.corpus.split("train")[: len(run.valid)], dict[str, Any]()
        with run.best_model() as model:
            end: Any = {"sentence_end": self.corpus.sentence_end}
            test = evaluate(model, self.corpus.split("test"), self.plan.test_batch_size, **end)
            size = run.config.valid_batch_size
            train = evaluate(model, piece, size, is_training_split=True, **end)
            if self.plan.cache and self.variant.is_control:
                more = evaluate_baselines(model, run.valid, self.corpus.split("test"))
        run.note(
            event="mark",
            regime=regime,
            **self._position(),
            **self._times(),
            valid_loss=run.best,
            test_loss=test.nats,
            train_loss=train.nats,
            **more,
        )
        run.save()
        self.marks.add(regime)

    def _analyse(self) -> None:
        """Rank and components of the best model, on the validation split."""
        with self.run.best_model() as model:
            ranks = effective_ranks(model, self.run.valid)
            use = mixture_use(model, self.run.valid)
            checked = quick_check(model, self.run.valid)
        information = None if use is None else use.specialisation
        found = checked and [asdict(finding) for finding in checked]
        self.run.note(event="analysis", specialisation=information, check=found, **ranks)
        self.run.save()
        self.events.add("analysis")


def next_point(num_tokens: int, validated: int) -> int:
    """Where the next validation is: num_tokens · √2^n, the first beyond the last one.

    Args:
        num_tokens: where equal tokens are compared, which is one of the points.
        validated: tokens at the last validation.
    """
    n = -NUM_POINTS
    while (point := round(num_tokens * FACTOR**n)) <= validated:
        n += 1
    return point


@torch.no_grad()
def effective_ranks(
    model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int = NUM_CONTEXTS
) -> dict[str, float | None]:
    """Numerical and ε-effective ranks of log p after the first tokens of a split.

    Args:
        model: in evaluation mode; its head may look back.
    """
    device = next(model.parameters()).device
    first = torch.from_numpy(tokens[:num_contexts].astype(np.int64))[:, None].to(device)  # (T, 1)
    state, rows = model.initial_state(1), []
    for window in first.split(WINDOW):
        read = model.read(window, state)
        state = read.state
        rows.append(model.head.log_prob(read.hidden, **read.past)[:, 0])  # (n, V)
    matrix = torch.cat(rows).float().cpu()  # (T, V)
    # A forbidden token has no finite logarithm.
    matrix = matrix[:, matrix.isfinite().all(0)]
    found = measure_ranks(singular_values(matrix_log_probs(matrix))[-1])
    return {"num_contexts": len(matrix)} | {key: found[key] for key in RANKS}


@dataclass(frozen=True)
class Slice:
    """A turn of a run."""

    index: int
    """Index of the variant."""
    seed: int
    cpu_seconds: float
    """CPU seconds of training: in this turn before it is trained, of the whole run afterwards."""
    state: RunState = RunState.UNFINISHED
    """State of the run after the turn."""


class Schedule:
    """Gives the next turn to the run of a seed that is furthest behind."""

    def __init__(self, plan: Plan, runs: Sequence[RunRecord]) -> None:
        self.plan = plan
        self.done: dict[tuple[int, int], float] = {}
        index_of = {variant.name: index for index, variant in enumerate(plan.variants)}
        for run in runs:
            self.note(Slice(index_of[run.variant], run.seed, run.cpu_seconds, run.state))

    def note(self, outcome: Slice) -> None:
        fraction = outcome.cpu_seconds / max(1e-9, self.plan.cpu_of(outcome.index))
        done = 1.0 if outcome.state.is_final else min(0.99, fraction)
        self.done[outcome.index, outcome.seed] = done

    @property
    def fraction(self) -> float:
        """Fraction of the whole comparison that is done."""
        cost = {key: self.plan.seconds_of(key[0]) for key in self.done}
        done = sum(cost[key] * self.done[key] for key in cost)
        return done / max(1e-9, sum(cost.values()))

    def next_slice(self, running: set[tuple[int, int]]) -> Slice | None:
        """Return a turn of a run that is not being trained; None if nothing is left for now."""
        for seed in self.plan.seeds:
            left = [
                key
                for key, fraction in self.done.items()
                if key[1] == seed and fraction < 1 and key not in running
            ]
            if left:
                index, _ = min(left, key=self.done.__getitem__)
                turn = max(SHORTEST_TURN, self.plan.cpu_of(index) / NUM_TURNS)
                return Slice(index, seed, turn)
        return None


def train(plan: Plan, folder: Path, on_progress: OnProgress = lambda fraction, text: None) -> None:
    """Train what is left of a comparison. Raises `Stopped` if a signal stops it."""
    check_device(plan.device)
    set_threads(plan.threads)
    schedule = Schedule(plan, read_runs(plan, folder))
    for key, done in schedule.done.items():
        if done == 1:
            # A run that is not opened again may have been killed while it saved its end.
            clear_temporaries(plan.run_folder(folder, *key) / name for name in FILES)
    train_all = _train_here if plan.jobs == 1 else _train_in_processes
    for outcome in train_all(plan, folder, schedule):
        schedule.note(outcome)
        variant = plan.variants[outcome.index]
        done = schedule.done[outcome.index, outcome.seed]
        state = outcome.state if outcome.state.is_final else f"{done:.0%} of it"
        text = f"seed {outcome.seed}, {variant.label}, d = {variant.embedding_size}: {state}"
        on_progress(schedule.fraction, text)


def _train_here(plan: Plan, folder: Path, schedule: Schedule) -> Iterator[Slice]:
    """One slice after the other."""
    while (task := schedule.next_slice(set())) is not None:
        # A run in training has its own way to stop; what it measures may be cut short.
        with listening(stop):
            outcome = _train_slice(plan, folder, task)
        yield outcome


def _train_slice(plan: Plan, folder: Path, task: Slice) -> Slice:
    run = VariantRun(plan, folder, task.index, task.seed)
    with closing(run.run):
        state = run.advance(task.cpu_seconds)
        return replace(task, cpu_seconds=run.run.clock.cpu_seconds, state=state)


def _train_in_processes(plan: Plan, folder: Path, schedule: Schedule) -> Iterator[Slice]:
    """Slices at the same time, each process on a core of its own."""
    context, is_broken = get_context("spawn"), False
    cores: SimpleQueue[int | None] = context.SimpleQueue()
    available = available_cores()
    for number in range(plan.jobs):
        cores.put(available[number] if plan.jobs <= len(available) else None)
    signals: list[int] = []
    with (
        listening(signals.append),
        ProcessPoolExecutor(plan.jobs, context, _start_worker, (cores,)) as executor,
    ):
        try:
            yield from _outcomes(executor, plan, folder, schedule, signals)
        except BrokenProcessPool:
            # The executor asks the other processes to stop, too, and waits for them.
            is_broken = True
        except BaseException:
            _stop_workers()
            raise
    if signals:
        raise Stopped(signals[0])
    if is_broken:
        raise OSError("A process that trained ended unexpectedly, perhaps for lack of memory.")


def _outcomes(
    executor: ProcessPoolExecutor,
    plan: Plan,
    folder: Path,
    schedule: Schedule,
    signals: Sequence[int],
) -> Iterator[Slice]:
    """Outcomes as they come, until nothing is left and nothing is being trained."""
    running: dict[Future[Slice], tuple[int, int]] = {}
    while True:
        if signals:
            _stop_workers()
        while not signals and len(running) < plan.jobs:
            task = schedule.next_slice(set(running.values()))
            if task is None:
                break
            future = executor.submit(_train_in_worker, plan, folder, task)
            running[future] = task.index, task.seed
        if not running:
            return
        for future in wait(running, PATIENCE, FIRST_COMPLETED).done:
            del running[future]
            yield future.result()


def _stop_workers() -> None:
    for process in active_children():
        process.terminate()


def _start_worker(cores: "SimpleQueue[int | None]") -> None:
    # Ctrl-C is for the parent, which passes it on; a run in training catches it itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if (core := cores.get()) is not None:
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    """Stop as by a signal when the parent has been killed: nobody else would."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _train_in_worker(plan: Plan, folder: Path, task: Slice) -> Slice:
    # The parent has it, by the user's word.
    import_kind(plan.variants[task.index].config.head.kind)
    try:
        return _train_slice(plan, folder, task)
    except Stopped:
        # The run is saved. A worker that lived on would keep a broken pool waiting for ever.
        os._exit(1)
