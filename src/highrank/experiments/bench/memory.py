"""Peak memory of a piece of work, each in a fresh process: what ran before leaves no trace."""

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from highrank.experiments.bench.child import Task

CHILD = [sys.executable, "-m", "highrank.experiments.bench.child"]


@dataclass(frozen=True)
class Peak:
    num_bytes: int | None
    """Above the inputs; None where it cannot be read."""
    failure: str | None = None
    """What ended the process, if it did not get to the end."""


def peak_memory(
    prepare: Callable[[], Callable[[], Any]],
    warm_up: Callable[[], Callable[[], Any]] | None = None,
) -> Peak:
    """The memory that `prepare()()` needs beyond what is there after `prepare()`.

    Args:
        prepare: makes the inputs and returns the work; a function of a module, or a `partial` of
            one, so that the process can import it.
        warm_up: the same for a tiny case, run first: libraries are loaded then.
    """
    task = pickle.dumps(Task(prepare, warm_up, torch.get_num_threads()))
    # In a session of its own, Ctrl-C does not reach the child: it is ended below, without a word.
    child = subprocess.Popen(
        CHILD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        try:
            out, errors = child.communicate(task)
        except BaseException:
            child.kill()
            child.wait()
            raise
    if child.returncode != 0:
        return Peak(None, _failure(child.returncode, errors.decode(errors="replace")))
    return Peak(json.loads(out.decode().splitlines()[-1])["peak_bytes"])


def _failure(code: int, errors: str) -> str:
    if code == -9:
        return "the process was killed: out of memory?"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"the process ended with code {code}"
