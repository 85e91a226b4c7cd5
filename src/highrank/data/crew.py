"""Functions of this package in processes of their own: they end with the one that started them.

A worker reads a task from its input, a line of JSON, and answers with lines: how many bytes it has
done, an error, or the end of the task. It does not import the user's script again.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

Task = Mapping[str, Any]
OnBytes = Callable[[int], None]

CHILD = "from highrank.data.crew import serve; serve()"


def perform(function: str, tasks: Sequence[Task], processes: int, on_bytes: OnBytes) -> None:
    """Call a function once for each task, in any order.

    Args:
        function: as "module:name"; it takes a task's values by name, and `on_bytes`.
        tasks: values that JSON knows.
        processes: 1 is this one.
        on_bytes: is given how many bytes were done since the last call, in this thread.
    """
    if processes == 1 or len(tasks) < 2:
        for task in tasks:
            _load(function)(**task, on_bytes=on_bytes)
        return
    left, lock, answers = iter(tasks), Lock(), SimpleQueue[int | Exception | None]()
    workers = [_start() for _ in range(min(processes, len(tasks)))]
    try:
        for worker in workers:
            given = (worker, function, left, lock, answers)
            Thread(target=_converse, args=given, daemon=True).start()
        num_working = len(workers)
        while num_working:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                num_working -= 1
            else:
                on_bytes(answer)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _start() -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # Ctrl-C is for the parent.
        start_new_session=True,
    )


def _converse(
    worker: subprocess.Popen[str],
    function: str,
    left: Iterator[Task],
    lock: Any,
    answers: "SimpleQueue[int | Exception | None]",
) -> None:
    """Give a worker tasks until none is left; None is the last answer."""
    assert worker.stdin is not None and worker.stdout is not None
    with worker.stdin, worker.stdout:
        try:
            while True:
                with lock:
                    task = next(left, None)
                if task is None:
                    answers.put(None)
                    return
                print(json.dumps([function, task]), file=worker.stdin, flush=True)
                while (answer := json.loads(worker.stdout.readline())) is not None:
                    if isinstance(answer, str):
                        raise ValueError(answer)
                    if isinstance(answer, list):
                        raise OSError(*answer)
                    answers.put(answer)
        except (OSError, ValueError) as error:
            if isinstance(error, json.JSONDecodeError | BrokenPipeError):
                code = worker.wait()
                error = OSError(
                    f"a process that prepared the text was ended by the system (code {code}): "
                    "fewer --processes need less memory"
                )
            answers.put(error)


def serve() -> None:
    """Do what comes from the input until it ends, or nobody listens any more."""
    answers = sys.stdout
    # What a library prints is no answer.
    sys.stdout = sys.stderr

    def answer(value: Any) -> None:
        try:
            print(json.dumps(value), file=answers, flush=True)
        except BrokenPipeError:
            # Not exit: it would try to print the rest.
            os._exit(1)

    for line in sys.stdin:
        function, task = json.loads(line)
        try:
            _load(function)(**task, on_bytes=answer)
        except ValueError as error:
            answer(str(error))
        except OSError as error:
            answer([error.errno, error.strerror, error.filename and str(error.filename)])
        else:
            answer(None)


def _load(function: str) -> Callable[..., None]:
    module, name = function.split(":")
    found: Callable[..., None] = getattr(importlib.import_module(module), name)
    return found
