"""A corpus as batches: what a training step reads, and how far the reading has come.

`highrank.data.BATCHES` lists the kinds. Batches know their position: `state_dict` is enough to
continue with the same ones. T time, B sequences, the batch size; L tokens of a block.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

IGNORED = -100
MIN_BPTT = 5


class Batch(NamedTuple):
    """Inputs and targets of one update."""

    inputs: Any
    """The model's inputs: a pytree of tensors whose dimension 1 is the batch."""
    target: Tensor
    """(T, B), token ids, or `IGNORED`."""
    num_targets: int
    """Number of targets that are not ignored."""
    carries: bool = False
    """Whether the model's state after the batch before carries over into this one."""
    lr_ratio: tuple[int, int] = (1, 1)
    """The learning rate of the update is scaled by the ratio of these two."""
    position: Tensor | None = None
    """(T, B), of each token that is read in the training split; -1 for one that is not of it."""
    keeps_state: bool = True
    """Whether the state after it may carry over into the next one."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def rows(self, rows: slice) -> "Batch":
        """Some time steps; the state carries over into those that are not the first."""
        found = self._map(lambda tensor: tensor[rows])
        carries = self.carries or (rows.start or 0) > 0
        return found._replace(carries=carries)

    def parts(self, size: int | None) -> list["Batch"]:
        """Micro-batches of so many sequences; None is all at once."""
        batch_size = self.target.shape[1]
        if size is None or size >= batch_size:
            return [self]
        return [self._part(slice(i, i + size)) for i in range(0, batch_size, size)]

    def _part(self, part: slice) -> "Batch":
        return self._map(lambda tensor: tensor[:, part])

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """With the function's results for all tensors, and as many targets as are left."""
        inputs, target = tree_map(function, (self.inputs, self.target))
        position = None if self.position is None else function(self.position)
        num_targets = target.numel()
        if self.num_targets < self.target.numel():
            num_targets = int((target != IGNORED).sum())
        return self._replace(
            inputs=inputs, target=target, num_targets=num_targets, position=position
        )


class Batches(Protocol):
    """An iterator over the batches of an epoch."""

    @property
    def mean_targets(self) -> int:
        """Mean number of targets of a batch."""

    @property
    def progress(self) -> float:
        """The fraction of the epoch that was read."""

    @property
    def is_epoch_over(self) -> bool:
        """Whether there is no further batch; `__next__` then raises StopIteration."""

    def start_epoch(self) -> None:
        """Return to the beginning."""

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Streams:
    """Tokens as B parallel streams (T, B): contiguous pieces of the corpus, the remainder cut off.

    Rows are copied when they are read, so that the corpus may stay on disk, however long.

    Args:
        columns: the streams that are read, of all; for one of several processes.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        device: torch.device | str = "cpu",
        columns: slice = slice(None),
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        length = len(tokens) // batch_size
        if length < 2:
            raise ValueError(
                f"the text must have at least two tokens for each of {batch_size} streams, "
                f"got {len(tokens)} tokens"
            )
        self.device = device
        self._pieces = tokens[: length * batch_size].reshape(batch_size, length)[columns]
        self._starts = torch.arange(batch_size, device=device)[columns] * length
        self.batch_size = len(self._pieces)

    def __len__(self) -> int:
        """T."""
        return int(self._pieces.shape[1])

    def __getitem__(self, rows: slice) -> Tensor:
        """Token ids of these rows, (n, B)."""
        window = self._pieces[:, rows].T.astype(np.int64, order="C")
        return torch.from_numpy(window).to(self.device)

    def positions(self, rows: slice) -> Tensor:
        """Where in the text the tokens of these rows are, (n, B)."""
        row = torch.arange(*rows.indices(len(self)), device=self.device)
        return row[:, None] + self._starts


class TextStreams:
    """Windows of truncated BPTT over parallel streams of text; the state carries over.

    Args:
        tokens: the training split.
        batch_size: B.
        seed: of the windows' lengths.
        device: where the batches are to be.
        columns: the streams that this process reads, of all.
        bptt: mean length of a window of truncated BPTT, in tokens.
        bptt_std: standard deviation of the length; 0 makes all windows equally long.
        bptt_max_delta: the longest window is this much longer than the mean (max_seq_len_delta).
        bptt_half_probability: probability that a window's length is drawn around half the mean.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        columns: slice = slice(None),
        bptt: int = 70,
        bptt_std: float = 5.0,
        bptt_max_delta: int = 40,
        bptt_half_probability: float = 0.05,
    ) -> None:
        if bptt < 1:
            raise ValueError(f"bptt must be at least 1, got {bptt}")
        if not 0 <= bptt_std < math.inf:
            raise ValueError(f"bptt_std must be at least 0 and finite, got {bptt_std}")
        if bptt_max_delta < 0:
            raise ValueError(f"bptt_max_delta must be at least 0, got {bptt_max_delta}")
        if not 0 <= bptt_half_probability <= 1:
            found = bptt_half_probability
            raise ValueError(f"bptt_half_probability must be between 0 and 1, got {found}")
        # A stream has a row to read, one to predict, and the one that an epoch stops before.
        if not 1 <= batch_size <= len(tokens) // 3:
            raise ValueError(
                f"batch_size must be between 1 and {len(tokens) // 3:,} for a training split of "
                f"{len(tokens):,} tokens, got {batch_size}"
            )
        self.data = Streams(tokens, batch_size, device, columns)
        self.bptt, self.bptt_std = bptt, bptt_std
        self.bptt_max_delta, self.bptt_half_probability = bptt_max_delta, bptt_half_probability
        self.generator = torch.Generator().manual_seed(seed)
        self.row = 0

    @property
    def mean_targets(self) -> int:
        return self.bptt * self.data.batch_size

    @property
    def progress(self) -> float:
        return min(1.0, self.row / (len(self.data) - 2))

    @property
    def is_epoch_over(self) -> bool:
        return self.row >= len(self.data) - 2

    def start_epoch(self) -> None:
        self.row = 0

    def __next__(self) -> Batch:
        """The next window; the learning rate is scaled by its length, as drawn."""
        if self.is_epoch_over:
            raise StopIteration
        drawn = self.draw_bptt()
        length = min(drawn, len(self.data) - 1 - self.row)
        first, self.row = self.row, self.row + length
        target = self.data[first + 1 : first + 1 + length]  # (T, B)
        return Batch(
            inputs=self.data[first : first + length],  # (T, B)
            target=target,
            num_targets=target.numel(),
            carries=first > 0,
            lr_ratio=(drawn, self.bptt),
            position=self.data.positions(slice(first, first + length)),
        )

    def draw_bptt(self) -> int:
        """The length of a window of truncated BPTT: Merity et al. (2018), section 5.

        Normal around `bptt` or, with `bptt_half_probability`, around half of it; at least
        `MIN_BPTT` and at most bptt + bptt_max_delta. Without a deviation it is `bptt`.
        """
        if self.bptt_std == 0:
            return self.bptt
        is_half = torch.rand((), generator=self.generator).item() < self.bptt_half_probability
        mean = self.bptt / 2 if is_half else float(self.bptt)
        noise = self.bptt_std * torch.randn((), generator=self.generator).item()
        return min(max(MIN_BPTT, int(mean + noise)), self.bptt + self.bptt_max_delta)

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not 0 <= state["row"] < len(self.data):
            raise ValueError(f"row must be below {len(self.data)}, got {state['row']}")
        self.row = state["row"]
        self.generator.set_state(state["generator"])


class Blocks:
    """Batches of independent blocks in random order, every block once in each epoch.

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
    def mean_targets(self) -> int:
        return self.num_predicted * len(range(self.batch_size)[self.columns])

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
        position = torch.full_like(inputs, -1)
        starts = torch.tensor(blocks, device=inputs.device) * len(rows)
        position[len(start) :] = starts + torch.arange(len(rows), device=inputs.device)[:, None]
        num_targets = inputs[first:].numel()
        return Batch(inputs=inputs, target=target, num_targets=num_targets, position=position)

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


def windows(num_rows: int, window: int) -> Iterator[tuple[int, int]]:
    """Start and length of consecutive windows that predict each row but the first once."""
    for start in range(0, num_rows - 1, window):
        yield start, min(window, num_rows - 1 - start)
