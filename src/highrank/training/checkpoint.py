"""`trainer.pt`, the whole checkpoint in one file: tensors and plain values, never objects."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from highrank.files import write_atomically
from highrank.models.tensors import content_sha256, write_tensors

FORMAT = 4
# Keys of the checkpoint by the format that they were last used in.
RENAMED_KEYS: dict[int, dict[str, str]] = {2: {"text_sha256": "corpus_sha256"}, 3: {}}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    content = {"format": FORMAT, "sha256": content_sha256(state), **state}
    with _explaining_failures(path):
        write_atomically(path, lambda temporary: torch.save(content, temporary))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote; a file that holds anything else is refused."""
    try:
        _check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = state.pop("format") if isinstance(state, dict) else type(state).__name__
        if type(found) is not int or found not in (*RENAMED_KEYS, FORMAT):
            raise ValueError(f"one of format {found}: start a new run")
        # Earlier formats have no hash.
        if found == FORMAT and state.pop("sha256") != content_sha256(state):
            raise ValueError("a damaged one: its content does not have the hash in it")
        for format_ in range(found, FORMAT):
            for old, new in RENAMED_KEYS[format_].items():
                state[new] = state.pop(old)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} must be a checkpoint of highrank, of format {FORMAT} or before, got {reason}"
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
    """When the disk is full: torch and safetensors have errors of their own for it."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"{path} could not be written: {reason}. The last checkpoint is whole: when "
            "the disk has space again, the same command with --resume continues from it"
        ) from None
