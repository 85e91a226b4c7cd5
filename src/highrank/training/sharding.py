"""Parameters in shards over the processes that train a model: `--shard vocabulary`, `--shard full`.

Sharded parameters are DTensors. Any number of processes continues from a checkpoint of them,
sharded or not (`distributed_checkpoint.py`). What torch has for them takes long to load, and is not
loaded for runs that are not sharded.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.utils._pytree import tree_map_only

from highrank.build import CheckedRun, build_model
from highrank.models.language_model import LanguageModel
from highrank.models.transformer import Transformer
from highrank.ops.sharding import full_tensor, is_distributed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

Sharding = Literal["none", "vocabulary", "full"]


def check_sharding(kind: Sharding, checked: CheckedRun, size: int) -> None:
    """Raise unless a run can be sharded in this way over so many processes."""
    if kind == "none":
        return
    if size == 1:
        raise ValueError(f"--shard {kind} must come with several processes, got one")
    if kind == "vocabulary":
        from highrank.heads.distributed import check_shardable

        counts = checked.corpus.token_counts
        with torch.device("meta"):
            model = build_model(checked.config, len(counts), counts)
        try:
            check_shardable(model.head)
        except ValueError as error:
            raise ValueError(f"--shard vocabulary: {error}; --shard full takes any head") from None


def shard_model(model: LanguageModel, kind: Sharding, size: int) -> None:
    """Spread the parameters of a model, which is the same in every process."""
    if kind == "none":
        return
    from torch.distributed.device_mesh import init_device_mesh

    from highrank.models.vocabulary_shards import shard_vocabulary

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (size,))
    if kind == "vocabulary":
        shard_vocabulary(model, mesh)
    else:
        _shard_fully(model, mesh)


def _shard_fully(model: LanguageModel, mesh: "DeviceMesh") -> None:
    from torch.distributed.fsdp import fully_shard

    if isinstance(model.backbone, Transformer):
        for layer in model.backbone.layers:
            fully_shard(layer, mesh=mesh)
    # A tied embedding must be in the group of the head: both are in that of the model.
    fully_shard(model, mesh=mesh)
    for module in _groups(model):
        # Each process has its targets' part of the mean already.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def synchronise(model: nn.Module, is_last: bool) -> None:
    """Exchange gradients in the next backward pass only if it is the last of a batch."""
    for module in _groups(model):
        module.set_requires_gradient_sync(is_last, recurse=False)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """A context in which a model after `fully_shard` is whole in each process."""
    groups = _groups(model)
    for module in groups:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in groups:
            module.reshard()
            # The outermost keeps its parameters for the backward pass, as it did before.
            module.set_reshard_after_forward(id(module) != id(model), recurse=False)


def _groups(model: nn.Module) -> "list[FSDPModule]":
    """The modules that FSDP2 gathers parameters for."""
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def clip(parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
    """Clip gradients by their norm over all parameters and processes; returns it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = [gradient for gradient in gradients if is_distributed(gradient)]
    if not sharded:
        return clip_grad_norm_(parameters, largest)
    plain = [gradient for gradient in gradients if not is_distributed(gradient)]
    norm = full_tensor(get_total_norm(sharded, foreach=False))
    total = torch.hypot(norm, get_total_norm(plain, foreach=False))
    clip_grads_with_norm_(parameters, largest, total, foreach=False)
    return total


def whole(tree: Any, is_kept: bool) -> Any:
    """Values with each sharded tensor whole; what is not to be kept is empty instead.

    All processes call it with the same values.
    """
    from torch.distributed.tensor import DTensor

    found: dict[int, Tensor] = {}

    def gather(tensor: DTensor) -> Tensor:
        if id(tensor) not in found:
            full = full_tensor(tensor.detach())
            found[id(tensor)] = full if is_kept else full.new_empty(0)
        return found[id(tensor)]

    return tree_map_only(DTensor, gather, tree)


def shards(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, in shards where those of the same name in `like` are."""
    return {name: shard(value, like.get(name)) for name, value in state.items()}


def shard(value: Tensor, like: Tensor | None) -> Tensor:
    """The tensor, in shards if `like` is."""
    if not is_distributed(like) or is_distributed(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def optimizer_shards(state: Mapping[str, Any], parameters: Sequence[nn.Parameter]) -> Any:
    """An optimiser's state with the shards of what belongs to sharded parameters."""
    found = {
        index: {
            name: shard(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": found}
