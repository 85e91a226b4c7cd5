"""`trainer.pt`, the whole checkpoint in one file: tensors and plain values, never objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from highrank.files import write_atomically

FORMAT = 3
# Keys of the checkpoint by the format that they were last used in.
RENAMED_KEYS = {2: {"text_sha256": "corpus_sha256"}}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    with _explaining_failures(path):
        write_atomically(path, lambda temporary: torch.save({"format": FORMAT, **state}, temporary))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote; a file that holds anything but data is refused."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} must be a checkpoint of highrank, got: {reason}") from None
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found not in (*RENAMED_KEYS, FORMAT):
        raise ValueError(
            f"{path} must be a checkpoint of format {FORMAT}, got {found}: start a new run"
        )
    for format_ in range(found, FORMAT):
        for old, new in RENAMED_KEYS[format_].items():
            state[new] = state.pop(old)
    assert isinstance(state, dict)
    return state


def save_model(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Weights alone, as safetensors: what `highrank.load` reads."""
    with _explaining_failures(path):
        write_atomically(path, lambda temporary: save_file(state, temporary))


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
