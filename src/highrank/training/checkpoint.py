"""`trainer.pt`, the whole checkpoint in one file: tensors and plain values, never objects."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from highrank.files import is_disk_full, write_atomically
from highrank.models.tensors import content_sha256, write_tensors
from highrank.run.folder import CHECKPOINT_FILE

FORMAT = 5


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    content = {"format": FORMAT, "sha256": content_sha256(state), **state}
    with _explaining_failures(path):
        write_atomically(path, lambda temporary: _save(content, temporary))


def _save(content: dict[str, Any], path: Path) -> None:
    # To a file that Python has opened: torch's own hides why it could not be written.
    with path.open("wb") as file:
        torch.save(content, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote; a file that holds anything else is refused."""
    try:
        _check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = state.pop("format") if isinstance(state, dict) else type(state).__name__
        if found != FORMAT:
            raise ValueError(f"one of format {found}: start a new run")
        if state.pop("sha256") != content_sha256(state):
            raise ValueError("a damaged one: its content does not have the hash in it")
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} must be a checkpoint of highrank, of format {FORMAT}, got {reason}"
        ) from None
    assert isinstance(state, dict)
    return state


def _check_archive(path: Path) -> None:
    """Raise unless the members have their CRC, and no more bytes than the file; torch asks not."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not is_stored or sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("members of another size than theirs in the file")
        if (name := archive.testzip()) is not None:
            raise ValueError(f"a damaged {name}")


def save_model(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Weights alone, as safetensors: what `highrank.load` reads."""
    with _explaining_failures(path):
        write_tensors(path, state)


@contextmanager
def _explaining_failures(path: Path) -> Iterator[None]:
    """What is lost and what is not; torch and safetensors have errors of their own."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        text = f"{path} could not be written: {reason}."
        if is_disk_full(error):
            text = f"The disk is full: {path} was not written."
        hope = "The run has not begun: the same command begins it once there is space."
        if path.with_name(CHECKPOINT_FILE).exists():
            hope = "The last checkpoint is whole: --resume continues from it once there is space."
        raise OSError(f"{text} {hope}") from None
