"""Text as numbers of its pieces, block by block: words between spaces, characters or subwords.

A piece gets the next free number when it appears. A dictionary knows them all. Most occurrences are
found by arrays beside it, many at once: these hold the bytes of short pieces themselves, as whole
numbers, so that what is found is exact. n pieces of a block.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from highrank.data.corpus import Recipe
from highrank.data.subwords import NEWLINE, make_backend
from highrank.data.text import tokenizer_of
from highrank.data.tokenizer import whitespace
from highrank.data.vocabulary import EOS

Integers = NDArray[Any]

# The end of a line is a piece, too.
END = "\n"
# What else str.split cuts at, besides the bytes below.
WIDE_SPACES = (
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
IS_SPACE = np.zeros(256, dtype=np.bool_)
IS_SPACE[[9, 11, 12, 13, 28, 29, 30, 31, 32]] = True
# Pieces of up to so many whole numbers of eight bytes each are found by arrays.
WIDTHS = (1, 2, 4)
# Pieces that the arrays of one width hold, in 0.3 to 0.7 GB; the dictionary finds the others.
LARGEST_TABLE = 1 << 20
# The lowest bytes of a number, by how many.
LOW_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
# 2⁶⁴ / φ: its multiples are spread evenly.
SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Numbering(Protocol):
    """The pieces of a text that is given block by block."""

    def number(self, text: str) -> Integers:
        """The numbers of the pieces of the next block."""

    def tokens(self) -> list[list[str]]:
        """The tokens of each piece, by its number."""


def numbering_of(recipe: Recipe) -> Numbering:
    """Start to number the pieces of a text, which begins with a line."""
    if recipe.subwords is not None:
        return SubwordNumbers(recipe)
    if recipe.tokenizer == "characters":
        return CharacterNumbers()
    return WordNumbers(recipe)


class WordNumbers:
    """What lies between spaces; the tokenizer is asked once for each different piece.

    Lines without a piece vanish unless the tokenizer has an `<eos>` for them.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._tokenize = tokenizer_of(recipe)
        self._keeps_blank_lines = bool(self._tokenize(""))
        self._pieces = Pieces()
        self._is_blank = True

    def number(self, text: str) -> Integers:
        if not text.isascii():
            for space in WIDE_SPACES:
                text = text.replace(space, " ")
        # A space at both ends.
        block = f" {text.replace(END, f' {END} ')} ".encode()
        characters = np.frombuffer(block, dtype=np.uint8)
        is_space = IS_SPACE[characters]
        edges = np.flatnonzero(is_space[1:] != is_space[:-1]) + 1
        starts, ends = edges[::2], edges[1::2]
        if len(starts) and not self._keeps_blank_lines:
            is_end = characters[starts] == ord(END)
            is_blank = np.concatenate(([self._is_blank], is_end[:-1])) & is_end
            self._is_blank = bool(is_end[-1])
            starts, ends = starts[~is_blank], ends[~is_blank]
        return self._pieces.look_up(block, starts, ends)

    def tokens(self) -> list[list[str]]:
        pieces = self._pieces.in_order()
        if self._tokenize is whitespace:
            return [[EOS if piece == END else piece] for piece in pieces]
        return [[EOS] if piece == END else self._tokenize(piece)[:-1] for piece in pieces]


class Pieces:
    """Numbers of pieces that are given as places in a block of bytes, without zeros in them."""

    def __init__(self) -> None:
        self._numbers: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._tables = [_Table(width) for width in WIDTHS]

    def __len__(self) -> int:
        return len(self._numbers)

    def in_order(self) -> list[str]:
        """All pieces, by their numbers."""
        return b"\0".join(self._numbers).decode().split("\0") if self._numbers else []

    def number_list(self, block: bytes) -> Integers:
        """The numbers of pieces with zeros between them."""
        zeros = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 0)
        ends = np.append(zeros, len(block)) if block else zeros
        return self.look_up(block, np.concatenate(([0], ends[:-1] + 1))[: len(ends)], ends)

    def look_up(self, block: bytes, starts: Integers, ends: Integers) -> Integers:
        # Room for the last piece to be read as whole numbers.
        block += bytes(8 * WIDTHS[-1])
        found = np.full(len(starts), -1, dtype=np.int64)
        sizes, shortest, short = ends - starts, 0, []
        for table in self._tables:
            places = np.flatnonzero((sizes > shortest) & (sizes <= 8 * table.width))
            keys = _whole_numbers(block, starts[places], sizes[places], table.width)
            found[places] = table.find(keys)
            short.append((places, keys))
            shortest = 8 * table.width
        unknown = np.flatnonzero(found < 0)
        bounds = zip(starts[unknown].tolist(), ends[unknown].tolist(), strict=True)
        pieces = map(self._numbers.__getitem__, (block[start:end] for start, end in bounds))
        is_known = found >= 0
        found[unknown] = np.fromiter(pieces, np.int64, len(unknown))
        for table, (places, keys) in zip(self._tables, short, strict=True):
            if table.size > LARGEST_TABLE:
                # What is frequent came early.
                continue
            new = ~is_known[places]
            numbers, first = np.unique(found[places][new], return_index=True)
            table.add([key[new][first] for key in keys], numbers)
        return found


def _whole_numbers(block: bytes, starts: Integers, sizes: Integers, width: int) -> list[Integers]:
    """The bytes of pieces, eight in each number: `width` arrays (n,). No text has zero bytes."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block, np.uint8), 8)
    return [
        windows[starts + 8 * column].view("<u8")[:, 0]
        & LOW_BYTES[np.clip(sizes - 8 * column, 0, 8)]
        for column in range(width)
    ]


class _Table:
    """Numbers of short pieces: open addressing, at most a quarter of the slots in use."""

    def __init__(self, width: int, log_slots: int = 14) -> None:
        self.width, self.size, self._log_slots = width, 0, log_slots
        self._keys = [np.zeros(1 << log_slots, dtype=np.uint64) for _ in range(width)]
        self._numbers = np.full(1 << log_slots, -1, dtype=np.int64)

    def find(self, keys: Sequence[Integers]) -> Integers:
        """The number of each piece (n,), -1 for those that are not there."""
        slots = self._first_slots(keys)
        found = self._numbers[slots]
        left = np.flatnonzero((found >= 0) & ~self._holds(slots, keys))
        while len(left):
            slots[left] = (slots[left] + 1) & (len(self._numbers) - 1)
            at, sought = slots[left], [key[left] for key in keys]
            found[left] = self._numbers[at]
            left = left[(found[left] >= 0) & ~self._holds(at, sought)]
        return found

    def add(self, keys: Sequence[Integers], numbers: Integers) -> None:
        """Add different pieces that are not there."""
        if 4 * (self.size + len(numbers)) > len(self._numbers):
            self._grow(self.size + len(numbers))
        self.size += len(numbers)
        slots = self._first_slots(keys)
        left = np.arange(len(numbers))
        while len(left):
            free = left[self._numbers[slots[left]] < 0]
            # Of several pieces for a slot the last one stays.
            self._numbers[slots[free]] = numbers[free]
            placed = free[self._numbers[slots[free]] == numbers[free]]
            for column, key in zip(self._keys, keys, strict=True):
                column[slots[placed]] = key[placed]
            left = left[~np.isin(left, placed)]
            slots[left] = (slots[left] + 1) & (len(self._numbers) - 1)

    def _grow(self, size: int) -> None:
        used = np.flatnonzero(self._numbers >= 0)
        keys, numbers = [column[used] for column in self._keys], self._numbers[used]
        self.__init__(self.width, (8 * size).bit_length())  # type: ignore[misc]
        self.add(keys, numbers)

    def _first_slots(self, keys: Sequence[Integers]) -> Integers:
        mixed = keys[0] * SPREAD
        for key in keys[1:]:
            mixed = (mixed ^ (mixed >> np.uint64(29)) ^ key) * SPREAD
        return (mixed >> np.uint64(64 - self._log_slots)).astype(np.int64)

    def _holds(self, slots: Integers, keys: Sequence[Integers]) -> Integers:
        same: Integers = self._keys[0][slots] == keys[0]
        for column, key in zip(self._keys[1:], keys[1:], strict=True):
            same &= column[slots] == key
        return same


class CharacterNumbers:
    """Every character."""

    def __init__(self) -> None:
        self._numbers: defaultdict[int, int] = defaultdict(count().__next__)
        self._table = np.full(0x110000, -1, dtype=np.int64)

    def number(self, text: str) -> Integers:
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        found: Integers = self._table[points]
        unknown = np.flatnonzero(found < 0)
        numbers = map(self._numbers.__getitem__, points[unknown].tolist())
        found[unknown] = np.fromiter(numbers, np.int64, len(unknown))
        self._table[points[unknown]] = found[unknown]
        return found

    def tokens(self) -> list[list[str]]:
        characters = map(chr, self._numbers)
        return [[EOS if character == END else character] for character in characters]


class SubwordNumbers:
    """Subwords, each with its own id."""

    def __init__(self, recipe: Recipe) -> None:
        assert recipe.subwords is not None
        self._subwords, self._backend = recipe.subwords, make_backend(recipe.subwords)
        self._end = recipe.subwords.tokens.index(NEWLINE)

    def number(self, text: str) -> Integers:
        found: list[int] = []
        *lines, last = text.split(END)
        for line in lines:
            found += [*self._backend.encode(line).ids, self._end]
        return np.array([*found, *self._backend.encode(last).ids], dtype=np.int64)

    def tokens(self) -> list[list[str]]:
        return [[token] for token in self._subwords.vocabulary]
