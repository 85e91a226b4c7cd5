"""Training in turns: whose turn it is, in this process or in several with a core and a thread each.

The runs of a seed take turns, so that a busy machine is the same for all. A signal stops every
process: a run in training is saved after the window that it is in, and what is being measured will
be measured again.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch

from highrank.environment import check_device, set_threads
from highrank.progress import OnProgress
from highrank.studies.compare.plan import Plan, available_cores
from highrank.studies.compare.record import RunRecord, RunState, read_runs
from highrank.studies.compare.run import VariantRun
from highrank.training.signals import Stopped, listening, stop

# A run is trained in so many turns, of so many seconds at least.
NUM_TURNS, SHORTEST_TURN = 8, 2.0
# Seconds between two looks at the signals.
PATIENCE = 0.5


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
    """Whose turn it is: within a seed the run that is furthest behind."""

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
    with closing(VariantRun(plan, folder, task.index, task.seed)) as run:
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
    try:
        return _train_slice(plan, folder, task)
    except Stopped:
        # The run is saved. A worker that lived on would keep a broken pool waiting for ever.
        os._exit(1)
