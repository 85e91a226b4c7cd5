"""Who decides and who writes: one process, or several that train one model together.

The first process decides (what to do next, whether time is over) and writes; the others follow.
Every process reads its own sequences of each batch, and gradients are summed. With one process
every method returns what it was given.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from highrank.config import BatchConfig
from highrank.models.language_model import LanguageModel
from highrank.ops.sharding import is_distributed
from highrank.training.sharding import Sharding, shard_model, whole

T = TypeVar("T")
# Processes may wait for the first one while it prepares a corpus. One that dies is noticed at once.
LONGEST_WAIT = timedelta(hours=24)
# Gradients are sent in parts of about so many bytes.
BUCKET_BYTES = 32 * 2**20


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    shard: Sharding = "none"
    """What of the model is spread over the processes."""

    @staticmethod
    def current() -> "World":
        """The processes that torch.distributed has joined; this one alone if it has joined none."""
        if dist.is_available() and dist.is_initialized():
            return World(dist.get_rank(), dist.get_world_size())
        return World()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def columns(self, batch: BatchConfig) -> slice:
        """The sequences of each batch that this process reads.

        Batches of sentences have another number of them each: they are dealt out one by one.
        """
        if batch.kind == "sentences":
            return slice(self.rank, None, self.size)
        return self.part(batch.batch_size)

    def part(self, batch_size: int) -> slice:
        """The consecutive sequences of a batch that this process has, as many as the others."""
        if batch_size % self.size:
            raise ValueError(
                f"batch.batch-size must be a multiple of the {self.size} processes, got "
                f"{batch_size}"
            )
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def streams(self, count: int | None) -> tuple[slice, bool]:
        """The streams of an evaluation that this process reads, and whether they count.

        Where there are fewer streams than processes, some read what others count. All read the same
        where each has a part of the vocabulary.

        Args:
            count: None where lines are alone: each batch of them is dealt out.
        """
        if self.shard == "vocabulary":
            return slice(None), self.is_first
        if count is None or self.rank < count:
            return slice(self.rank, None, self.size), True
        return slice(0, 1), False

    def seed(self, seed: int, step: int = 0) -> int:
        """A seed of this process' own; at the start of a run the first one has the run's."""
        if self.is_first and step == 0:
            return seed
        sequence = np.random.SeedSequence([seed, self.rank, step])
        return int(sequence.generate_state(1, np.uint64)[0])

    def first(self, work: Callable[[], T]) -> T:
        """Work in the first process alone; all return its result, or raise its error."""
        if self.size == 1:
            return work()
        found: list[Any] = [None, None]
        if self.is_first:
            try:
                found[0] = work()
            except Exception as error:
                found[1] = error
        dist.broadcast_object_list(found)
        if found[1] is not None:
            # The first process tells it.
            found[1].is_told = not self.is_first
            raise found[1]
        return cast(T, found[0])

    def first_then_others(self, work: Callable[[], T]) -> T:
        """Work in every process, in the first one before the others: what it makes, they find."""
        done: list[T] = []
        self.first(lambda: done.append(work()))
        return done[0] if done else work()

    def any(self, is_true: bool) -> bool:
        """Whether it is true in any process."""
        return self.sum(float(is_true)) > 0 if self.size > 1 else is_true

    def sum(self, value: float) -> float:
        """The sum over all processes."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients in all processes; None if none has one."""
        if self.size == 1:
            return
        # Those of sharded parameters are complete.
        trained = [p for p in parameters if p.requires_grad and not is_distributed(p)]
        if not trained:
            return
        counts = torch.tensor([float(p.grad is not None) for p in trained])
        dist.all_reduce(counts)
        used = [p for p, count in zip(trained, counts.tolist(), strict=True) if count]
        sent = [(bucket, _send(bucket)) for bucket in _buckets(used)]
        for bucket, (flat, work) in sent:
            work.wait()
            parts = flat.split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad = part.view_as(p)

    @torch.no_grad()
    def share_model(self, model: LanguageModel, seed: int) -> None:
        """Give all processes the first one's parameters and buffers, or their shards of them.

        From then on each draws random numbers, such as dropout masks, of its own.
        """
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor, 0)
            shard_model(model, self.shard, self.size)
            if not self.is_first:
                torch.manual_seed(self.seed(seed))

    def whole(self, tree: Any) -> Any:
        """Values of which each process may have shards, whole in the first one."""
        return tree if self.shard == "none" else whole(tree, is_kept=self.is_first)

    def gather(self, value: T) -> list[T]:
        """The value of each process, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def gather_columns(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes side by side, along dimension 1."""
        return tensor if self.size == 1 else torch.cat(self.gather(tensor), 1)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in groups of one dtype and about `BUCKET_BYTES`, the last ones first.

    The order in which they have been used, reversed, is that of their gradients.
    """
    bucket: list[nn.Parameter] = []
    size = 0
    for p in reversed(parameters):
        if bucket and (size >= BUCKET_BYTES or p.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += p.numel() * p.element_size()
    if bucket:
        yield bucket


def _send(bucket: Sequence[nn.Parameter]) -> tuple[Tensor, Any]:
    """Begin to sum the gradients; returns where, and what to wait for."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
    flat = torch.cat([part.reshape(-1) for part in parts])
    return flat, dist.all_reduce(flat, async_op=True)


@contextmanager
def joined(device: str = "cpu") -> Iterator[tuple[World, str]]:
    """Join the processes that torchrun has started, if it has, and leave them at the end.

    Yields the world and the device of this process. Tensors on a CPU go through gloo, those on CUDA
    through NCCL.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(), device
        return
    backend = "gloo"
    if device == "cuda":
        device, backend = f"cuda:{os.environ['LOCAL_RANK']}", "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://"))
    # torchrun keeps its store when it restarts workers: theirs are other addresses.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, None, LONGEST_WAIT, size, rank, store)
    yield World.current(), device
    # Not after an error: others may be gone.
    with suppress(RuntimeError):
        dist.barrier()
        dist.destroy_process_group()


def is_lost(error: RuntimeError) -> bool:
    """Whether it says that another process has ended."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
