"""Arrays of a long text: in memory if they are short, else in a file that has no name.

Such a file takes space in the folder of temporary files (`TMPDIR`) until its array is gone, and
its pages leave memory whenever something else needs it.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

# Numbers that are worked on at once. What sorts them takes about 40 bytes each.
BLOCK = 1 << 23
# Longer arrays are files.
MOST_IN_MEMORY = 1 << 23


def new_array(size: int, dtype: DTypeLike, columns: int | None = None) -> Any:
    """Zeros, (size,) or (size, columns)."""
    shape = (size,) if columns is None else (size, columns)
    if size <= MOST_IN_MEMORY:
        return np.zeros(shape, dtype)
    # The mapping keeps the file.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def blocks(size: int, length: int | None = None) -> Iterator[slice]:
    """Consecutive slices of an array, of `BLOCK` numbers or of `length`."""
    length = BLOCK if length is None else length
    for start in range(0, size, length):
        yield slice(start, min(start + length, size))
