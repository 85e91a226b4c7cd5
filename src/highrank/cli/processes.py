"""`highrank train --processes N`: workers on this machine, started by torch's own launcher.

The same command under torchrun needs none of this.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from highrank.cli.console import plain_console

if TYPE_CHECKING:
    from highrank.cli.train import Options

# The launcher's name for its job; torchrun chooses another.
JOB = "highrank"
# Of Linux: the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1
# What a worker has told itself: a mistake of the user, a divergence.
TOLD = (2, 3)


def is_worker() -> bool:
    """Whether torchrun or `launch` has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def finds_prepared() -> bool:
    """Whether another process has prepared the corpus before, and shown its progress."""
    if not is_worker():
        return False
    return os.environ["TORCHELASTIC_RUN_ID"] == JOB or os.environ["RANK"] != "0"


def follow_launcher() -> None:
    """Save and end when the launcher dies, which would otherwise leave its workers behind."""
    if is_worker() and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def check_worker(options: "Options") -> None:
    """Raise for options that contradict what torchrun was told, if it has started this process."""
    if not is_worker():
        return
    size = int(os.environ["WORLD_SIZE"])
    if options.processes not in (None, size):
        raise ValueError(f"--processes must be left out under torchrun, got {options.processes}")
    has_folder = options.out is not None or options.resume is not None
    if int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) > 0 and not has_folder:
        raise ValueError(
            "--out must be given with torchrun's --max-restarts, so that a restart finds the run, "
            "got neither --out nor --resume"
        )


def launch(options: "Options", folder: Path, resume: str) -> None:
    """Run the same command in several workers, in this folder; ends with their exit code.

    Args:
        resume: the command that continues the run.
    """
    assert options.processes is not None
    # Signals and failures of workers are told below.
    logging.disable(logging.CRITICAL)
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // options.processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.processes,
        run_id=JOB,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
    )
    has_folder = options.out is not None or options.resume is not None
    command = ["-m", "highrank", *sys.argv[1:], *([] if has_folder else ["--out", str(folder)])]
    try:
        elastic_launch(config, sys.executable)(*command)
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code not in TOLD and code < 128:
            ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            _tell_end(f"process {rank} of {options.processes} was ended {ended}", folder, resume)
        sys.exit(code if code > 0 else 1)


@contextmanager
def telling_lost(folder: Path | None = None, resume: str = "") -> Iterator[None]:
    """End where another worker has ended; under torchrun one of those that are left says so.

    Args:
        folder: the run's, once it is known.
        resume: the command that continues the run.
    """
    from highrank.run.folder import is_in_training
    from highrank.training.world import is_lost

    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        rank, job = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RUN_ID"]
        # The first one says it; if it is that one that has ended, its lock is free.
        has_first = folder is not None and is_in_training(folder)
        if job != JOB and (rank == 0 or (rank == 1 and not has_first)):
            _tell_end("another process has ended", folder, resume)
        sys.exit(1)


def _tell_end(what: str, folder: Path | None, resume: str) -> None:
    from highrank.run.folder import CHECKPOINT_FILE

    hope = "The run has not begun: start it again."
    if folder is not None and (path := folder / CHECKPOINT_FILE).exists():
        hope = f"The last checkpoint is {path}. Resume with: {resume}"
    plain_console(stderr=True).print(f"highrank: {what}. {hope}")
