"""Shards that several processes write: read by any number, and refused where they are damaged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from highrank.training.checkpoint import load_checkpoint, save_checkpoint
from highrank.training.distributed_checkpoint import clear_shards, read_shards, write_shards
from highrank.training.world import World

WEIGHT, BIAS = torch.arange(10.0).view(5, 2), torch.tensor([0.5], dtype=torch.float64)


def shared(tensor):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (World.current().size,))
    return distribute_tensor(tensor, mesh, [Shard(0)])


def write(folder):
    """Write a checkpoint; returns the folder of its shards."""
    world, weight = replace(World.current(), shard="full"), shared(WEIGHT)
    state = {"model": {"in": weight, "out": weight, "bias": shared(BIAS)}, "text": "as it was"}
    state = write_shards(Path(folder), state | {"plain": [torch.ones(2)]}, world)
    if world.is_first:
        save_checkpoint(Path(folder) / "trainer.pt", state)
        clear_shards(Path(folder), state)
    return state["shards"]["folder"]


def read(folder, shard):
    """The weight as this process reads it, and the whole tensors."""
    world, path = replace(World.current(), shard=shard), Path(folder)
    model = read_shards(path, load_checkpoint(path / "trainer.pt"), world)["model"]
    assert model["in"] is model["out"]
    if shard == "none":
        return tuple(model["in"].shape), model["in"], model["bias"]
    local = tuple(model["in"].to_local().shape)
    return local, model["in"].full_tensor(), model["bias"].full_tensor()


@pytest.fixture
def folder(tmp_path, processes):
    """A checkpoint that was written twice; the first one's shards are gone."""
    assert [processes(write, str(tmp_path))[0] for _ in range(2)] == ["shards-1", "shards-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards-2", "trainer.pt"]
    return tmp_path


def test_any_number_of_processes_reads_the_shards(folder, processes):
    found = [*processes(read, str(folder), "full"), *processes(read, str(folder), "none")]
    found.append(read(folder, "none"))
    own = [(2, 2), (2, 2), (1, 2)] if processes.size == 3 else [(3, 2), (2, 2)]
    assert [shape for shape, _, _ in found] == [*own, *[(5, 2)] * (processes.size + 1)]
    for _, weight, bias in found:
        torch.testing.assert_close((weight, bias), (WEIGHT, BIAS), rtol=0, atol=0)
    state = read_shards(folder, load_checkpoint(folder / "trainer.pt"), World())
    assert state["text"] == "as it was" and torch.equal(state["plain"][0], torch.ones(2))


def test_damaged_and_missing_shards_are_refused(folder, processes):
    first, *others = sorted((folder / "shards-2").iterdir())
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with pytest.raises(ValueError, match="shards-2 must have the shards of the checkpoint, got"):
        read(folder, "none")
    for file in (first, *others):
        file.unlink()
    with pytest.raises(ValueError, match="shards-2 must have the shards of the checkpoint, got"):
        read(folder, "none")


def fill_disk(folder):
    """Fail to write shards, as the disk is full in the second process; returns the reason."""
    from torch.distributed.checkpoint import filesystem

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if World.current().rank == 1:
            patch.setattr(filesystem.FileSystemWriter, "_write_data", full)
        with pytest.raises(OSError, match="No space left") as error:
            write(folder)
    return error.value.errno


def test_an_error_in_one_process_is_one_in_all(tmp_path, processes):
    assert processes(fill_disk, str(tmp_path)) == [28] * processes.size
