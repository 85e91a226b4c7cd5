"""Slices of runs, in this process or in several that have a core and a thread each.

Ctrl-C and what schedulers send stop every process after the window that it is in, with its run
saved.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from highrank.studies.compare.plan import Plan, read_plan
from highrank.studies.compare.run import CellRun, SliceOutcome
from highrank.training.signals import listening, stop


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A turn of a run."""

    index: int
    """Of the cell."""
    seed: int
    cpu_seconds: float


# Given what is being trained, the next slice; None if nothing is left for now.
NextSlice = Callable[[set[tuple[int, int]]], Slice | None]


def run_here(folder: Path, plan: Plan, next_slice: NextSlice) -> Iterator[SliceOutcome]:
    """One slice after the other."""
    while (task := next_slice(set())) is not None:
        outcome = _train(folder, plan, task)
        yield outcome
        if outcome.state == "interrupted":
            return


def _train(folder: Path, plan: Plan, task: Slice) -> SliceOutcome:
    """One slice, in this process."""
    try:
        # A run in training has its own way to stop; what it measures may be cut short.
        with listening(stop), closing(CellRun(plan, folder, task.index, task.seed)) as run:
            return run.advance(task.cpu_seconds)
    except KeyboardInterrupt as error:
        number = (error.args or (signal.SIGINT,))[0]
        return _interrupted(task.index, task.seed, number)


def _interrupted(index: int, seed: int, number: int | None = None) -> SliceOutcome:
    return SliceOutcome(
        index=index, seed=seed, state="interrupted", tokens=0, cpu_seconds=0.0, signal=number
    )


class Workers:
    """Processes that train slices, each on a core of its own."""

    def __init__(self, folder: Path, jobs: int) -> None:
        context = get_context("spawn")
        cores = available_cores()
        self.pipes: dict[Connection, tuple[int, int] | None] = {}
        self.processes = []
        for number in range(jobs):
            ours, theirs = context.Pipe()
            core = cores[number] if jobs <= len(cores) else None
            process = context.Process(target=_work, args=(folder, theirs, core), daemon=True)
            process.start()
            theirs.close()
            self.pipes[ours] = None
            self.processes.append(process)
        self.is_stopping = False

    def run(self, next_slice: NextSlice) -> Iterator[SliceOutcome]:
        """Outcomes as they come, until nothing is left and nothing is being trained."""
        while True:
            self._give(next_slice)
            busy = [pipe for pipe, task in self.pipes.items() if task is not None]
            if not busy:
                return
            for pipe in wait(busy, timeout=0.5):
                assert isinstance(pipe, Connection)
                yield from self._receive(pipe)

    def stop(self) -> None:
        """Ask all to stop after the window that they are in."""
        self.is_stopping = True
        for process in self.processes:
            if process.pid is not None and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(60)
            if process.is_alive():
                process.kill()

    def _give(self, next_slice: NextSlice) -> None:
        for pipe, task in list(self.pipes.items()):
            if task is not None or self.is_stopping:
                continue
            running = {one for one in self.pipes.values() if one is not None}
            given = next_slice(running)
            if given is None:
                return
            pipe.send(given)
            self.pipes[pipe] = (given.index, given.seed)

    def _receive(self, pipe: Connection) -> Iterator[SliceOutcome]:
        task = self.pipes[pipe]
        assert task is not None
        try:
            found = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self.pipes[pipe]
            if not self.is_stopping:
                raise OSError(
                    "A process that trained ended unexpectedly, perhaps for lack of memory."
                ) from None
            yield _interrupted(*task)
            return
        self.pipes[pipe] = None
        if isinstance(found, Exception):
            raise found
        yield found


def available_cores() -> list[int]:
    """The cores that this process may use; empty where the system does not say."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return []


def _work(folder: Path, pipe: Connection, core: int | None) -> None:
    """What a process does: slices, until the pipe closes."""
    # Ctrl-C is for the parent, which passes it on; a run in training catches it itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    if core is not None:
        os.sched_setaffinity(0, {core})
    plan = read_plan(folder)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                with closing(CellRun(plan, folder, task.index, task.seed)) as run:
                    outcome = run.advance(task.cpu_seconds)
            except (ValueError, OSError, RuntimeError) as error:
                pipe.send(error)
                return
            pipe.send(outcome)
            if outcome.state == "interrupted":
                return
