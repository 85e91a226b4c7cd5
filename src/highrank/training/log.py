"""`metrics.jsonl`: one line per event. The checkpoint has the same lines and restores the file.

TensorBoard can be given the same numbers; it needs the extra `track`.
"""

import errno
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

# How many steps have a line of their own before only every second has one, then every fourth.
NUM_STEPS = 32


class MetricsLog:
    """A file of JSON lines.

    Who has it open owns the run; the system lets go of the lock when a process dies.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            self.handle = os.open(path, flags, 0o666)
        except OSError as error:
            reason = "a link" if error.errno == errno.ELOOP else error.strerror
            raise ValueError(f"{path} must be a plain file, got {reason}") from None
        # At the latest when nobody refers to it any more.
        self.close = weakref.finalize(self, os.close, self.handle)
        if not lock_file(self.handle):
            raise ValueError(f"the run must not be in training elsewhere, got {path.parent}")
        self.path, self.text = path, ""
        """The file, and all of its lines."""

    def write(self, **values: Any) -> None:
        line = json.dumps(values) + "\n"
        self._append(line.encode())
        self.text += line

    def restore(self, text: str) -> None:
        """Give the file the lines that it had at the checkpoint, whatever it has now."""
        content = text.encode()
        if self._head(len(content)) == content:
            os.ftruncate(self.handle, len(content))
        else:
            os.ftruncate(self.handle, 0)
            self._append(content)
        self.text = text

    def whole_lines(self, length: int) -> str:
        """The lines in the first bytes of the file, up to the first that is damaged."""
        found = ""
        for line in self._head(length).split(b"\n")[:-1]:
            try:
                is_event = "event" in json.loads(line)
            except (ValueError, TypeError, RecursionError):
                is_event = False
            if not is_event:
                break
            found += line.decode() + "\n"
        return found

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def _append(self, content: bytes) -> None:
        try:
            _write(self.handle, content)
        except OSError as error:
            # The system knows the handle only.
            error.filename = str(self.path)
            raise

    def _head(self, length: int) -> bytes:
        with os.fdopen(os.dup(self.handle), "rb") as file:
            file.seek(0)
            return file.read(length)


class SilentLog:
    """The log of a process that does not write."""

    text = ""

    def write(self, **values: Any) -> None:
        pass

    def restore(self, text: str) -> None:
        pass

    def read(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        pass


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]


def is_logged(step: int) -> bool:
    """Whether a step has a line: all of the first, then ever fewer, 32 for each doubling."""
    return step % (1 << max(0, (step // NUM_STEPS).bit_length() - 1)) == 0


def check_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            f"TensorBoard must be installed for --tensorboard: {install_hint('track')}"
        )


def tensorboard_writer(folder: Path, step: int) -> Callable[[Mapping[str, Any]], None]:
    """A function that takes each event of a run, which continues from this step."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    if (folder / "tensorboard").is_symlink():
        raise ValueError(f"{folder / 'tensorboard'} must be a folder, got a link")
    # What an interrupted run wrote after its checkpoint is hidden.
    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(event: Mapping[str, Any]) -> None:
        if event["event"] not in ("step", "epoch"):
            return
        titles = {"train_loss": "perplexity/train", "valid_loss": "perplexity/valid"}
        if event["event"] == "step":
            titles = {"train_loss": "perplexity/train, steps"}
        for key, title in titles.items():
            writer.add_scalar(title, math.exp(min(event[key], 700.0)), event["step"])
        if event["seconds"] > 0:
            speed = event["tokens"] / event["seconds"]
            writer.add_scalar("tokens per second", speed, event["step"])
        writer.flush()

    return write
