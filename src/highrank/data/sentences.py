"""Sentences alone: each is read after an `<eos>` from an initial state, and its own is predicted.

The text is cut into sections of whole sentences, which are read in random order, one at a time. The
sentences of a section are sorted by length and cut into batches of about as many tokens, padding
included; then the batches are shuffled. Every token is predicted once in an epoch. T time, B
sentences of a batch, another number each time.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.data.batches import IGNORED, Batch

Integers = NDArray[Any]

SECTION_TOKENS = 1 << 22
SCANNED_TOKENS = 1 << 12


class Section(NamedTuple):
    """Consecutive sentences, in memory."""

    start: int
    """Where in the text they begin."""
    tokens: Integers
    bounds: Integers
    """The first token of each sentence, and the end of the last one."""
    order: Integers
    """The sentences by length."""
    edges: Integers
    """Where in `order` a batch begins, and the last one ends."""

    def sizes(self) -> Integers:
        """Tokens of each batch."""
        lengths = np.diff(self.bounds)[self.order]
        return np.add.reduceat(lengths, self.edges[:-1])

    def sentences(self, batch: int) -> Integers:
        """The sentences of a batch, by their number in the section."""
        return self.order[self.edges[batch] : self.edges[batch + 1]]

    def batch(self, sentences: Integers, end: int, columns: slice = slice(None)) -> Batch:
        """A batch of these sentences, or some columns of it.

        Args:
            columns: one process' part, slice(rank, None, number of processes). All have tensors of
                one shape: where a process has a sentence less, its last column is ignored.
        """
        starts, lengths = self.bounds[sentences], np.diff(self.bounds)[sentences]
        row = np.arange(lengths.max())[:, None]  # (T, 1)
        missing = -len(sentences) % (columns.step or 1)
        starts, lengths = (np.pad(x, (0, missing))[columns] for x in (starts, lengths))
        places = np.minimum(starts + row, len(self.tokens) - 1)  # (T, B)
        target = np.where(row < lengths, self.tokens[places].astype(np.int64), IGNORED)
        inputs = np.full_like(target, end)
        inputs[1:] = np.where(target[:-1] == IGNORED, end, target[:-1])
        # What is read before a sentence is the end of the one before it.
        position = np.where(row < lengths, self.start + starts + row - 1, -1)
        return Batch(
            inputs=torch.from_numpy(inputs),
            target=torch.from_numpy(target),
            num_targets=int(lengths.sum()),
            position=torch.from_numpy(position),
            keeps_state=False,
        )


class Sentences:
    """Batches of sentences in random order, every sentence once in each epoch.

    Args:
        tokens: the training split.
        batch_size: sentences of mean length in a batch.
        seed: of the order, another in each epoch.
        device: where the batches are to be.
        columns: the part of each batch that this process reads: slice(rank, None, number of
            processes).
        sentence_end: token id of `<eos>`.
        length: tokens of a sentence of mean length: a batch has about batch_size · length.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        columns: slice = slice(None),
        sentence_end: int | None = None,
        length: int = 32,
    ) -> None:
        if sentence_end is None:
            raise ValueError("batch.kind must not be sentences for a vocabulary without <eos>")
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        if not 1 <= batch_size <= len(tokens):
            raise ValueError(
                f"batch_size must be between 1 and {len(tokens):,} for a training split of "
                f"{len(tokens):,} tokens, got {batch_size}"
            )
        self.tokens, self.end, self.device = tokens, sentence_end, device
        self.batch_size, self.length, self.seed, self.columns = batch_size, length, seed, columns
        self.epoch, self.position = 0, 0
        """The present epoch, and the number of tokens predicted, of all epochs and processes."""

    @property
    def mean_targets(self) -> int:
        return self.length * len(range(self.batch_size)[self.columns])

    @property
    def progress(self) -> float:
        return min(1.0, self.position / len(self.tokens) - self.epoch)

    @property
    def is_epoch_over(self) -> bool:
        return self.position >= (self.epoch + 1) * len(self.tokens)

    def start_epoch(self) -> None:
        self.epoch += 1
        self.position = max(self.position, self.epoch * len(self.tokens))

    def __next__(self) -> Batch:
        if self.is_epoch_over:
            raise StopIteration
        epoch, place = divmod(self.position, len(self.tokens))
        order, ends = self._sections(epoch)
        index = int(np.searchsorted(ends, place, side="right"))
        section, batches, batch_ends = self._shuffled(epoch, int(order[index]))
        place -= int(ends[index - 1]) if index else 0
        number = int(np.searchsorted(batch_ends, place, side="right"))
        self.position += int(batch_ends[number]) - place
        sentences = section.sentences(int(batches[number]))
        return section.batch(sentences, self.end, self.columns).to(self.device)

    @cached_property
    def _bounds(self) -> Integers:
        return section_bounds(self.tokens, self.end)

    @lru_cache(maxsize=1)  # noqa: B019
    def _sections(self, epoch: int) -> tuple[Integers, Integers]:
        """The sections in their order, and how many tokens were read after each."""
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self._bounds) - 1)
        return order, np.cumsum(np.diff(self._bounds)[order])

    @lru_cache(maxsize=1)  # noqa: B019
    def _shuffled(self, epoch: int, number: int) -> tuple[Section, Integers, Integers]:
        """A section, its batches in their order, and how many tokens were read after each."""
        generator = np.random.default_rng([self.seed, epoch, number])
        start, stop = self._bounds[number : number + 2].tolist()
        size = self.batch_size * self.length
        section = read_section(self.tokens, start, stop, self.end, size, generator)
        sizes = section.sizes()
        batches = generator.permutation(len(sizes))
        return section, batches, np.cumsum(sizes[batches])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch, position = state["epoch"], state["position"]
        if not 0 <= position - epoch * len(self.tokens) <= len(self.tokens):
            raise ValueError(f"position must be in epoch {epoch}, got {position}")
        self.epoch, self.position = epoch, position


def sentence_batches(
    tokens: Integers, end: int, size: int, columns: slice = slice(None)
) -> Iterator[Batch]:
    """All sentences of a split, the shortest of each section first.

    Args:
        end: token id of `<eos>`.
        size: tokens of a batch, padding included; a longer sentence is a batch of its own.
        columns: one process' part of each batch, as of `Sentences`.
    """
    bounds = section_bounds(tokens, end)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        section = read_section(tokens, start, stop, end, size)
        for number in range(len(section.edges) - 1):
            yield section.batch(section.sentences(number), end, columns)


def section_bounds(tokens: Integers, end: int) -> Integers:
    """Where sections begin, and where the last one ends: after a sentence each."""
    starts = range(SECTION_TOKENS, len(tokens), SECTION_TOKENS)
    middles = [_sentence_start(tokens, start, end) for start in starts]
    return np.unique([0, *middles, len(tokens)])


def _sentence_start(tokens: Integers, position: int, end: int) -> int:
    """The first beginning of a sentence at this position or after it."""
    for first in range(position - 1, len(tokens), SCANNED_TOKENS):
        ends = np.flatnonzero(tokens[first : first + SCANNED_TOKENS] == end)
        if len(ends):
            return first + int(ends[0]) + 1
    return len(tokens)


def read_section(
    tokens: Integers,
    start: int,
    stop: int,
    end: int,
    size: int,
    generator: np.random.Generator | None = None,
) -> Section:
    """The sentences from `start` up to `stop`, and their batches.

    Args:
        size: tokens of a batch, padding included.
        generator: of the order of sentences that are equally long.
    """
    if isinstance(tokens, np.memmap) and tokens.filename is not None:
        # What is read of a file, and not mapped, does not stay in memory.
        offset = tokens.offset + start * tokens.itemsize
        text = np.fromfile(tokens.filename, tokens.dtype, stop - start, offset=offset)
    else:
        text = np.asarray(tokens[start:stop])
    bounds = np.concatenate(([0], np.flatnonzero(text == end) + 1))
    if bounds[-1] < len(text):
        bounds = np.append(bounds, len(text))
    lengths = np.diff(bounds)
    noise = np.zeros(len(lengths)) if generator is None else generator.random(len(lengths))
    order = np.lexsort((noise, lengths))
    return Section(start, text, bounds, order, _edges(lengths[order], size))


def _edges(lengths: Integers, size: int) -> Integers:
    """Where batches begin, of sentences in the order of these lengths, and where the last ends."""
    edges = [0]
    while edges[-1] < len(lengths):
        first = edges[-1]
        longest = lengths[first : first + max(1, size // lengths[first])]
        padded = np.arange(1, len(longest) + 1) * longest
        edges.append(first + max(1, int(np.searchsorted(padded, size, side="right"))))
    return np.array(edges)
