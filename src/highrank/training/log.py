"""`metrics.jsonl`: one line per event, appended; a resumed run cuts it back to its checkpoint.

The numbers of `metrics.jsonl` for TensorBoard, in the run's folder: extra `track`.
"""

import importlib.util
import json
import math
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from highrank.environment import install_hint
from highrank.files import lock_file


class MetricsLog:
    """An append-only file of JSON lines whose length is part of the checkpoint.

    Who has it open owns the run; the system lets go of the lock when a process dies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, self.handle)
        if not lock_file(self.handle):
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


def check_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            f"TensorBoard must be installed for --tensorboard: {install_hint('track')}"
        )


def tensorboard_writer(folder: Path, step: int) -> Callable[[Mapping[str, Any]], None]:
    """A function that takes each event of a run, which continues from this step."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run wrote after its checkpoint is hidden.
    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(event: Mapping[str, Any]) -> None:
        if event["event"] != "epoch":
            return
        for split in ("train", "valid"):
            perplexity = math.exp(min(event[f"{split}_loss"], 700.0))
            writer.add_scalar(f"perplexity/{split}", perplexity, event["step"])
        speed = event["tokens"] / event["seconds"]
        writer.add_scalar("tokens per second", speed, event["step"])
        writer.flush()

    return write
