"""Who decides and who writes: one process, or several that train one model together.

The first process decides (what to do next, whether time is over) and writes; the others follow.
Every process reads its own sequences of each batch, and gradients are summed. With one process
every method returns what it was given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @staticmethod
    def current() -> "World":
        """The processes that torch.distributed has joined; this one alone if it has joined none."""
        if dist.is_available() and dist.is_initialized():
            return World(dist.get_rank(), dist.get_world_size())
        return World()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, batch_size: int) -> slice:
        """The sequences of a batch that this process reads."""
        if batch_size % self.size:
            raise ValueError(
                f"batch.batch-size must be a multiple of the {self.size} processes, got "
                f"{batch_size}"
            )
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

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
            raise found[1]
        return cast(T, found[0])

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
        """Give each parameter the sum of its gradients in all processes."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    @torch.no_grad()
    def share_parameters(self, model: nn.Module) -> None:
        """Give all processes the first one's parameters and buffers."""
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor, 0)

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
