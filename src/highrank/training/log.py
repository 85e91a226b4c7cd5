"""`metrics.jsonl`: one line per event, appended; a resumed run cuts it back to its checkpoint."""

import errno
import json
import os
import weakref
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes from training in one folder.
    fcntl = None  # type: ignore[assignment]


# What file systems without locks answer.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class MetricsLog:
    """An append-only file of JSON lines whose length is part of the checkpoint.

    Who has it open owns the run; the system lets go of the lock when a process dies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, self.handle)
        if not _lock(self.handle):
            raise ValueError(f"the run must not be in training elsewhere, got {path.parent}")

    def write(self, **values: Any) -> None:
        os.write(self.handle, (json.dumps(values) + "\n").encode())
        os.fsync(self.handle)

    @property
    def length(self) -> int:
        """In bytes."""
        return self.path.stat().st_size

    def cut(self, length: int) -> None:
        """Forget what was written after the checkpoint."""
        os.truncate(self.path, length)

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def is_in_training(run: Path) -> bool:
    """Whether a process has the run's log open to write."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return False
    with path.open() as file:
        return not _lock(file.fileno(), is_shared=True)


def _lock(handle: int, is_shared: bool = False) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
