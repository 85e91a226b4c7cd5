"""Tensors in files that notice damage: their hash is written with them and checked when read."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from highrank.files import write_atomically

# In the metadata of a safetensors file.
HASH = "sha256"


def content_sha256(value: Any) -> str:
    """SHA-256 of tensors and plain values in any nesting of dicts, lists and tuples."""
    digest = sha256()
    _update(digest, value)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        # As bytes already in torch: numpy does not know bfloat16.
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        digest.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            _update(digest, key)
            _update(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}".encode())
        for item in value:
            _update(digest, item)
    else:
        text = f"{type(value).__name__} {value!r}"
        digest.update(f"{len(text)} {text}".encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **about: str) -> None:
    """Write a safetensors file with the hash of its tensors.

    Args:
        about: further metadata.
    """
    about[HASH] = content_sha256(dict(sorted(tensors.items())))
    write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, about))


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, without reading one."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise _read_error(path, error) from None


def read_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors that `write_tensors` wrote; raise ValueError if the file has changed since."""
    try:
        with safe_open(path, "pt", device=device) as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except Exception as error:
        raise _read_error(path, error) from None
    if about.get(HASH) != content_sha256(tensors):
        raise ValueError(f"{path} is damaged: its tensors do not have the hash in it")
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{path} must have finite numbers only, got others in {name}")
    return tensors


def _read_error(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{path} must be a whole safetensors file, got {reason}")
