"""Encoded pairs, and batches of pairs of like lengths: what a training step reads.

S source tokens, T target tokens, B pairs of a batch.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.data.batches import IGNORED, Batch


class Ragged(NamedTuple):
    """Sequences of different lengths, end to end."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    """One more than there are sequences."""

    @staticmethod
    def of(sequences: Iterable[Sequence[int]]) -> "Ragged":
        rows = [np.asarray(row, dtype=np.int32) for row in sequences]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Ragged(np.concatenate([*rows, np.empty(0, np.int32)]), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def row(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.starts[index] : self.starts[index + 1]]

    def columns(self, rows: Sequence[int], fill: int) -> Tensor:
        """These sequences as columns (length of the longest, B), filled up behind their ends."""
        found = np.full((len(rows), int(self.lengths[list(rows)].max())), fill, dtype=np.int64)
        for place, index in enumerate(rows):
            row = self.row(index)
            found[place, : len(row)] = row
        return torch.from_numpy(np.ascontiguousarray(found.T))


class EncodedPairs(NamedTuple):
    """Token ids of sources and targets, their end-of-text tokens included."""

    source: Ragged
    target: Ragged

    def __len__(self) -> int:
        return len(self.source)

    @property
    def num_targets(self) -> int:
        return len(self.target.ids)

    def select(self, rows: Sequence[int]) -> "EncodedPairs":
        """These pairs alone."""
        return EncodedPairs(
            *(Ragged.of(side.row(index).tolist() for index in rows) for side in self)
        )

    def batch(self, rows: Sequence[int], pad: int, device: torch.device | str = "cpu") -> Batch:
        """The batch of these pairs; the inputs are token ids and a mask of them, (S, B)."""
        source = self.source.columns(rows, pad)
        lengths = torch.from_numpy(self.source.lengths[list(rows)])  # (B,)
        mask = (torch.arange(len(source))[:, None] < lengths).long()  # (S, B)
        return Batch(
            inputs={"input_ids": source.to(device), "attention_mask": mask.to(device)},
            target=self.target.columns(rows, IGNORED).to(device),  # (T, B)
            num_targets=int(self.target.lengths[list(rows)].sum()),
        )


class PairBatches:
    """Batches of pairs of like lengths in random order, every pair once in each epoch.

    Pairs are sorted by the lengths of target and source, equal ones in another order in each epoch,
    and cut so that no batch has more than `batch_tokens` places on its longer side: little is
    padding, and every step costs about the same.

    Args:
        pairs: the training split.
        batch_tokens: most places (B · max(S, T)) of a batch; a longer pair stands alone.
        pad: token id of places behind a source's end; they are masked.
        seed: of the order, another in each epoch.
        device: where the batches are to be.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int,
        *,
        pad: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        if len(pairs) < 1:
            raise ValueError("pairs must be one at least, got none")
        self.pairs, self.batch_tokens, self.pad, self.seed = pairs, batch_tokens, pad, seed
        self.device = device
        self.epoch, self.position = 0, 0
        """The present epoch, and the number of its batches that were read."""
        self._plan = lru_cache(maxsize=1)(self._make_plan)

    def _make_plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, as rows."""
        random = np.random.default_rng([self.seed, epoch])
        source, target = self.pairs.source.lengths, self.pairs.target.lengths
        # Sources rise and fall in turns, so that they do not jump where targets become longer.
        turn = np.where(target % 2 == 0, source, -source)
        order = np.lexsort((random.random(len(self.pairs)), turn, target))
        batches = cut_by_tokens(order, np.maximum(source, target), self.batch_tokens)
        return [batches[i] for i in random.permutation(len(batches))]

    @property
    def num_batches(self) -> int:
        """Batches of the present epoch."""
        return len(self._plan(self.epoch))

    @property
    def mean_targets(self) -> int:
        return max(1, self.pairs.num_targets // self.num_batches)

    @property
    def progress(self) -> float:
        return self.position / self.num_batches

    @property
    def is_epoch_over(self) -> bool:
        return self.position >= self.num_batches

    def start_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0

    def __next__(self) -> Batch:
        if self.is_epoch_over:
            raise StopIteration
        rows = self._plan(self.epoch)[self.position]
        self.position += 1
        return self.pairs.batch(rows.tolist(), self.pad, self.device)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        if not 0 <= state["position"] <= self.num_batches:
            most = self.num_batches
            raise ValueError(f"position must be between 0 and {most}, got {state['position']}")
        self.position = state["position"]


def cut_by_tokens(
    order: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int
) -> list[NDArray[np.int64]]:
    """Pieces of an order in which the count times the longest length is at most `batch_tokens`.

    Args:
        lengths: of each row, at its own place.
    """
    pieces, first, longest = [], 0, 0
    for place, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        if place > first and (place + 1 - first) * longest > batch_tokens:
            pieces.append(order[first:place])
            first, longest = place, length
    pieces.append(order[first:])
    return pieces


def batches_in_order(pairs: EncodedPairs, batch_tokens: int) -> list[list[int]]:
    """All pairs, sorted by length and cut into batches: for an evaluation."""
    lengths = (pairs.source.lengths, pairs.target.lengths)
    order = np.lexsort(lengths)
    return [rows.tolist() for rows in cut_by_tokens(order, np.maximum(*lengths), batch_tokens)]
