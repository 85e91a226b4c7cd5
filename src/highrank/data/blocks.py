"""Text as independent blocks in random order: no state carries over from one to the next.

L tokens of a block, B blocks of a batch.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.data.batches import IGNORED, Batch


class Blocks:
    """Batches of blocks that know nothing of each other, every block once in each epoch.

    A batch at the end of an epoch is filled with the first blocks of the next one.

    Args:
        tokens: the training split; what is left after the last whole block is not read.
        batch_size: B.
        seed: of the order of the blocks, another in each epoch.
        device: where the batches are to be.
        columns: the blocks of each batch that this process reads.
        length: tokens of a block (L).
        prefix: token ids that every block begins with, among its L: read and not predicted.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        columns: slice = slice(None),
        length: int = 256,
        prefix: tuple[int, ...] = (),
    ) -> None:
        size = length - len(prefix)
        if size < 2:
            raise ValueError(f"length must be at least {2 + len(prefix)}, got {length}")
        self.count = len(tokens) // size
        if not 1 <= batch_size <= self.count:
            raise ValueError(
                f"batch_size must be between 1 and {self.count:,} for a training split of "
                f"{self.count:,} blocks of {length} tokens, got {batch_size}"
            )
        self.batch_size, self.seed, self.device, self.columns = batch_size, seed, device, columns
        self.prefix = torch.tensor(prefix, dtype=torch.int64)
        self._pieces = tokens[: self.count * size].reshape(self.count, size)
        self.epoch, self.position = 0, 0
        """The present epoch, and the number of blocks read, of all epochs."""

    @property
    def num_predicted(self) -> int:
        """Tokens of a block that are predicted; nothing is before the first."""
        size: int = self._pieces.shape[1]
        return size if len(self.prefix) else size - 1

    @property
    def progress(self) -> float:
        return min(1.0, self.position / self.count - self.epoch)

    @property
    def is_epoch_over(self) -> bool:
        return self.position >= (self.epoch + 1) * self.count

    def start_epoch(self) -> None:
        self.epoch += 1
        self.position = max(self.position, self.epoch * self.count)

    def __next__(self) -> Batch:
        if self.is_epoch_over:
            raise StopIteration
        places = range(self.position, self.position + self.batch_size)
        self.position += self.batch_size
        return self.batch([self._block_at(place) for place in places[self.columns]])

    def _block_at(self, place: int) -> int:
        epoch, index = divmod(place, self.count)
        return int(_permutation(self.seed, epoch, self.count)[index])

    def batch(self, blocks: Sequence[int]) -> Batch:
        """The batch of these blocks, by their numbers in the text."""
        rows = torch.from_numpy(self._pieces[list(blocks)].T.astype(np.int64, order="C"))
        start = self.prefix[:, None].expand(-1, len(blocks))  # (prefix, B)
        inputs = torch.cat([start, rows]).to(self.device)  # (L, B)
        target = torch.full_like(inputs, IGNORED)
        first = len(inputs) - self.num_predicted
        target[first - 1 : -1] = inputs[first:]
        return Batch(inputs=inputs, target=target, num_targets=inputs[first:].numel())

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch, position = state["epoch"], state["position"]
        if not 0 <= position - epoch * self.count < self.count + self.batch_size:
            raise ValueError(f"position must be in epoch {epoch}, got {position}")
        self.epoch, self.position = epoch, position


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)
