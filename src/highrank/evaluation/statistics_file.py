"""Gradient statistics beside a run: computed once, then read while nothing they need changes.

The file's name has a hash of the weights, the training text and the sizes of the batches.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from highrank.data.atomic import write_atomically
from highrank.evaluation.scored import Read
from highrank.evaluation.statistics import (
    NUM_COLUMNS,
    SEGMENT,
    GradientStatistics,
    gradient_statistics,
)

# Tokens that are hashed at once: the text may be a memory map larger than memory.
CHUNK = 1 << 20


def statistics_beside(
    folder: Path,
    model: nn.Module,
    tokens: NDArray[np.integer],
    *,
    num_columns: int = NUM_COLUMNS,
    segment: int = SEGMENT,
    on_progress: Callable[[float, str], None] | None = None,
    read: Read | None = None,
) -> GradientStatistics:
    """As `gradient_statistics`, from folder/statistics-<key>.safetensors if that is there.

    Args:
        read: how to read with a model that is no `LanguageModel`; the key knows nothing of it.
    """
    key = statistics_key(model, tokens, num_columns, segment)
    path = folder / f"statistics-{key[:16]}.safetensors"
    found = _load(path, key, segment)
    if found is None:
        found = gradient_statistics(
            model,
            tokens,
            num_columns=num_columns,
            segment=segment,
            on_progress=on_progress,
            read=read,
        )
        try:
            _save(path, key, found)
        except (OSError, SafetensorError) as error:
            # They are complete; only the next evaluation has to make them again.
            warnings.warn(f"{path} could not be kept: {error}", stacklevel=2)
    # In the order and on the device of the parameters: a file has an order of its own.
    rms = {name: found.rms[name].to(p.device) for name, p in model.named_parameters()}
    return replace(found, rms=rms)


def statistics_key(
    model: nn.Module, tokens: NDArray[np.integer], num_columns: int, segment: int
) -> str:
    """A hash of all that the statistics depend on."""
    digest = hashlib.sha256(f"{num_columns} columns, {segment} steps".encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    for chunk in _chunks(tokens):
        digest.update(chunk.astype("<i8").tobytes())
    return digest.hexdigest()


def _load(path: Path, key: str, segment: int) -> GradientStatistics | None:
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("key") != key:
                return None
            rms = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError):
        return None
    return GradientStatistics(rms=rms, num_batches=int(about["num_batches"]), segment=segment)


def _save(path: Path, key: str, statistics: GradientStatistics) -> None:
    tensors = {name: rms.cpu().contiguous() for name, rms in statistics.rms.items()}
    about = {"key": key, "num_batches": str(statistics.num_batches)}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, about))


def _bytes(tensor: Tensor) -> bytes:
    # As bytes already in torch: numpy does not know bfloat16.
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _chunks(tokens: NDArray[np.integer]) -> Iterator[NDArray[np.integer]]:
    for start in range(0, len(tokens), CHUNK):
        yield np.asarray(tokens[start : start + CHUNK])
