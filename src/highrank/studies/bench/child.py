"""The process in which a variant's memory is measured: `python -m …bench.child`.

Reads a pickled `Task` from standard input, and writes one line of JSON as its last word.
"""

import ctypes
import json
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Task(NamedTuple):
    prepare: Callable[[], Callable[[], Any]]
    """Makes the inputs, and returns the work."""
    warm_up: Callable[[], Callable[[], Any]] | None
    """The same for a tiny case."""
    num_threads: int


def main() -> None:
    task = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(task.num_threads)
    print("\n" + json.dumps({"peak_bytes": extra_peak(task.prepare, task.warm_up)}))


def extra_peak(
    prepare: Callable[[], Callable[[], Any]], warm_up: Callable[[], Callable[[], Any]] | None
) -> int | None:
    """Bytes by which doing the work raises this process's memory; None where that is unknown."""
    if warm_up is not None:
        # Libraries that are loaded at the first use of a kernel do not count.
        warm_up()()
    work = prepare()
    _give_back_freed_memory()
    _reset_peak()
    before = _memory("VmRSS")
    work()
    after = _memory("VmHWM")
    return None if before is None or after is None else max(0, after - before)


def _memory(field: str) -> int | None:
    """VmRSS: bytes of this process in memory; VmHWM: the most there have been."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return _peak_so_far()
    return int(re.findall(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)[0]) * 1024


def _peak_so_far() -> int | None:
    """Without /proc the peak has to stand for the present, too: what is below it is not seen."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, the others in KiB.
    return peak if sys.platform == "darwin" else peak * 1024


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _give_back_freed_memory() -> None:
    """What `prepare` freed must not be reused unseen by the work. glibc only."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


if __name__ == "__main__":
    main()
