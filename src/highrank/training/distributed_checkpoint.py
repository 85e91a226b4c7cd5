"""Checkpoints of `--shard full`: every process writes its shards, and none has all of them.

`torch.distributed.checkpoint` writes them as safetensors to a folder beside trainer.pt, which is
written last and has the name and hashes of the folder: one that it does not name is not complete.
Any number of processes reads the shards, with or without `--shard`.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_map_only, tree_map_with_path

from highrank.files import file_sha256
from highrank.ops.sharding import is_distributed
from highrank.training.world import World

PREFIX = "shards-"
KEY = "shards"


def write_shards(path: Path, state: dict[str, Any], world: World) -> dict[str, Any]:
    """Write the sharded tensors of a state to a new folder in `path`.

    Returns the state with their names in their place, and with what `read_shards` needs.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}

    def name_of(place: Any, value: Any) -> Any:
        if not is_distributed(value):
            return value
        # A tied parameter is written once.
        name = names.setdefault(id(value), keystr(place))
        tensors[name] = value
        return name

    named = tree_map_with_path(name_of, state)
    folder = world.first(lambda: _new_folder(path))
    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
    about = {
        "folder": folder.name,
        "sha256": _hashes(folder, world),
        "tensors": {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()},
    }
    return {**named, KEY: about}


def read_shards(
    path: Path, state: dict[str, Any], world: World, device: str = "cpu"
) -> dict[str, Any]:
    """The state with its sharded tensors: whole, or in shards on a device with `--shard full`."""
    about = state.pop(KEY, None)
    if about is None:
        return state
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = path / about["folder"]
    found = _hashes(folder, world)
    world.first(lambda: _check_hashes(folder, found, about["sha256"]))
    tensors = _empty(about["tensors"], world, device)
    with warnings.catch_warnings():
        # One process alone needs no group.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
    whole: dict[str, Any] = tree_map_only(str, lambda text: tensors.get(text, text), state)
    return whole


def _check_hashes(folder: Path, found: dict[str, str], want: dict[str, str]) -> None:
    if found != want:
        raise ValueError(f"{folder} must have the shards of the checkpoint, got others")


def clear_shards(path: Path, state: dict[str, Any]) -> None:
    """Remove all shards but those of a state that `write_shards` returned."""
    kept = state.get(KEY, {}).get("folder")
    for folder in path.glob(f"{PREFIX}*"):
        if folder.name != kept:
            shutil.rmtree(folder)


def _new_folder(path: Path) -> Path:
    numbers = [int(folder.name.removeprefix(PREFIX)) for folder in path.glob(f"{PREFIX}*")]
    folder = path / f"{PREFIX}{max(numbers, default=0) + 1}"
    folder.mkdir()
    return folder


def _hashes(folder: Path, world: World) -> dict[str, str]:
    """SHA-256 of each file; every process computes those of some."""
    files = sorted(folder.glob("*"))
    own = {file.name: file_sha256(file) for file in files[world.rank :: world.size]}
    return {name: found for part in world.gather(own) for name, found in part.items()}


def _empty(shapes: dict[str, Any], world: World, device: str) -> dict[str, Tensor]:
    """Tensors to read into, in shards as FSDP2 has them if this world has them so."""
    if world.shard != "full":
        return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, empty

    mesh = init_device_mesh(torch.device(device).type, (world.size,))
    return {
        name: empty(*shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        for name, (shape, dtype) in shapes.items()
    }
