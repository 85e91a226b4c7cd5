"""A vocabulary whose rows are spread over processes, and what the processes exchange.

Every process has the same tokens and some rows of the output embedding and of the bias. A process
may have none. Wherever the processes must agree, a mistake in one of them is an error in all:
an error in one alone would let the others wait for it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from highrank.ops.tracing import in_torch_func

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

# Rows start … stop - 1.
Rows = tuple[int, int]


@dataclass(frozen=True)
class VocabularyShard:
    """Rows of the vocabulary in each process of a group."""

    group: "ProcessGroup"
    rows: tuple[Rows, ...]
    """By the process's rank in the group."""

    @property
    def start(self) -> int:
        return self.rows[self.group.rank()][0]

    @property
    def stop(self) -> int:
        return self.rows[self.group.rank()][1]

    @property
    def vocab_size(self) -> int:
        return max(stop for _, stop in self.rows)

    @property
    def most_rows(self) -> int:
        return max(stop - start for start, stop in self.rows)


def is_distributed(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor. There is none unless something has loaded its module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor as every process needs it, if it is a DTensor: all of it."""
    return tensor.full_tensor() if is_distributed(tensor) else tensor


def local_rows(tensor: Tensor) -> Tensor:
    """The rows that are here, if it is a DTensor."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def shard_of(
    weight: Tensor,
    bias: Tensor | None = None,
    group: "ProcessGroup | None" = None,
    rows: Rows | None = None,
) -> VocabularyShard | None:
    """The rows of each process; None if the whole vocabulary is here.

    Args:
        weight: this process's rows (stop - start, E), or a DTensor that is sharded on dimension 0.
        rows: start and stop, of a weight that is no DTensor.
    """
    if is_distributed(weight):
        if group is not None or rows is not None:
            raise ValueError("group and shard must be left out for a DTensor, got one of them")
        return _shard_of_distributed(weight, bias)
    if is_distributed(bias):
        raise ValueError("bias must be sharded as weight is, got a DTensor beside a plain tensor")
    if rows is None:
        if group is not None:
            raise ValueError("shard must be given with group, got None")
        return None
    if in_torch_func():
        raise ValueError("shard must be left out inside torch.func transforms, got one")
    if not dist.is_initialized():
        raise ValueError(
            "shard must come after torch.distributed.init_process_group, got it before"
        )
    own = group if group is not None else dist.group.WORLD
    assert own is not None
    return VocabularyShard(own, _gather_rows(rows, weight, own))


def check_same_tokens(
    shard: VocabularyShard, context: Tensor, target: Tensor | None, size: int
) -> None:
    """Raise unless all processes have the same tokens and work in the same chunks.

    Nothing waits for an accelerator: there the process learns of it at its next synchronisation.

    Args:
        context: compared up to round-off, in a few thousand of its numbers.
        size: tokens of a chunk.
    """
    few = context.detach().flatten()[:4096].float()
    probe = torch.arange(1, len(few) + 1, device=few.device, dtype=few.dtype).sin()
    # About normally distributed: other contexts have another one.
    look = (few @ probe) * 2**0.5 / few.norm().clamp(min=1e-30)
    exact = [float(len(context) % 2**24), float(size % 2**24)]
    if target is not None:
        place = torch.arange(1, target.numel() + 1, device=target.device)
        # Numbers below 2^24 are exact in float32.
        look = torch.stack((look, ((target.flatten() * place).sum() % 2**24).float()))
    values = torch.cat((few.new_tensor(exact), look.reshape(-1)))
    both = all_reduce_max(torch.cat((values, -values)), shard)
    spread = both[: len(values)] + both[len(values) :]
    differs = spread > torch.tensor([0.5, 0.5, 0.02, 0.5][: len(values)], device=few.device)
    if not few.is_cpu:
        torch._assert_async(~differs.any(), "The processes must have the same tokens.")
        return
    names = ("number of tokens", "chunk_bytes", "context (dropout included)", "target")
    for name, different in zip(names, differs.tolist(), strict=False):
        if different:
            raise ValueError(f"{name} must be the same in every process of the group, got others")


def all_reduce_max(tensor: Tensor, shard: VocabularyShard) -> Tensor:
    """The largest of the processes' numbers, in place."""
    if tensor.numel():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=shard.group)
    return tensor


def row_max(logits: Tensor, shard: VocabularyShard) -> Tensor:
    """The largest of each row's logits (..., 1) in all processes; 0 if all are -inf."""
    if shard.start < shard.stop:
        found = logits.detach().amax(-1, keepdim=True)
    else:
        found = logits.new_full((*logits.shape[:-1], 1), -torch.inf)
    found = all_reduce_max(found, shard)
    return found.masked_fill(found == -torch.inf, 0.0)


def all_reduce_sum(tensor: Tensor, shard: VocabularyShard) -> Tensor:
    """The sum of the processes' numbers, in place."""
    if tensor.numel():
        dist.all_reduce(tensor, group=shard.group)
    return tensor


def all_reduce_sums(tensors: Sequence[Tensor], shard: VocabularyShard) -> list[Tensor]:
    """The sums of several tensors of one dtype, in one exchange."""
    joined = all_reduce_sum(torch.cat([tensor.reshape(-1) for tensor in tensors]), shard)
    parts = joined.split([tensor.numel() for tensor in tensors])
    return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]


def row_argmax(columns: Tensor, shard: VocabularyShard) -> Tensor:
    """The token (N,) with the largest number of its row, the first one if there are several.

    Args:
        columns: (N, rows that are here).
    """
    if columns.shape[1]:
        value, index = columns.max(-1)  # (N,)
    else:
        value = columns.new_full((len(columns),), -torch.inf)
        index = torch.zeros_like(value, dtype=torch.long)
    is_mine = value == all_reduce_max(value.clone(), shard)
    # Of indices below zero the largest is the first one.
    return -all_reduce_max(torch.where(is_mine, -(index + shard.start), -shard.vocab_size), shard)


def as_in_first_process(tensor: Tensor, weight: Tensor | None) -> Tensor:
    """The tensor of the first process of a DTensor's group; the tensor itself for other weights."""
    if is_distributed(weight):
        group = weight.device_mesh.get_group()
        dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)
    return tensor


def with_summed_gradient(tensor: Tensor, shard: VocabularyShard) -> Tensor:
    """The tensor itself, of whose gradient each process sees a part: they are summed."""
    found = tensor.view_as(tensor)
    if found.requires_grad:
        copy = partial(torch.clone, memory_format=torch.contiguous_format)
        found.register_hook(lambda upstream: all_reduce_sum(copy(upstream), shard))
    return found


def gather_columns(columns: Tensor, shard: VocabularyShard) -> Tensor:
    """All columns (N, V) in every process, which goes on to use them as the others do."""
    found: Tensor = _Gathered.apply(columns, shard)
    return found


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, shard: VocabularyShard) -> Tensor:
        ctx.shard = shard
        sent = columns.new_zeros(len(columns), shard.most_rows)
        sent[:, : columns.shape[1]] = columns
        parts = [torch.empty_like(sent) for _ in shard.rows]
        dist.all_gather(parts, sent, group=shard.group)
        found = columns.new_empty(len(columns), shard.vocab_size)
        for part, (start, stop) in zip(parts, shard.rows, strict=True):
            found[:, start:stop] = part[:, : stop - start]
        return found

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[:, ctx.shard.start : ctx.shard.stop], None


def _shard_of_distributed(weight: "DTensor", bias: Tensor | None) -> VocabularyShard:
    from torch.distributed.tensor import Shard

    mesh = weight.device_mesh
    if mesh.ndim != 1 or weight.placements != (Shard(0),):
        raise ValueError(
            "weight must be a DTensor with the placement Shard(0) on a mesh of one dimension, "
            f"got {weight.placements} on {mesh}"
        )
    if bias is not None and (
        not is_distributed(bias) or (bias.device_mesh, bias.placements) != (mesh, (Shard(0),))
    ):
        raise ValueError("bias must be a DTensor that is sharded as weight is, got another one")
    V, most = len(weight), -(-len(weight) // mesh.size())
    starts = [min(rank * most, V) for rank in range(mesh.size())]
    return VocabularyShard(
        mesh.get_group(), tuple((start, min(start + most, V)) for start in starts)
    )


def _gather_rows(rows: Rows, weight: Tensor, group: "ProcessGroup") -> tuple[Rows, ...]:
    """The rows of all processes: every token of the vocabulary in one of them."""
    mine = torch.tensor([*rows, len(weight)], device=weight.device)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(found, mine, group=group)
    every: list[list[int]] = torch.stack(found).tolist()
    for start, stop, length in every:
        if length != stop - start:
            raise ValueError(f"weight must have rows {start} … {stop - 1}, got {length} rows")
    filled = sorted((start, stop) for start, stop, _ in every if start < stop)
    ends = [0, *(stop for _, stop in filled)]
    if not filled or [start for start, _ in filled] != ends[:-1]:
        raise ValueError(
            f"shards must cover the vocabulary once, got {[(a, b) for a, b, _ in every]}"
        )
    return tuple((start, stop) for start, stop, _ in every)
