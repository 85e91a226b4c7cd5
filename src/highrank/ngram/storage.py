"""An n-gram model in a folder: arrays that are mapped into memory, and their hashes.

`ngram.json` has the sizes, and the SHA-256 of every array, all of which is compared when the folder
is loaded. Arrays are .npy files, without objects: nothing in the folder can execute code.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from highrank.files import file_sha256, from_json, new_folder, read_json, without_format
from highrank.ngram.arrays import blocks
from highrank.ngram.kneser_ney import LeaveOneOut, NGram
from highrank.ngram.table import Table, TableSize

FORMAT, VERSION = "highrank n-gram", 1
HEADER_FILE = "ngram.json"
TABLE_TYPES = {"key": "<i8", "share": "<f8", "backoff": "<f8"}
# All that a model has that is not trained any further.
TABLE_FILES = (HEADER_FILE, *(f"{name}.npy" for name in TABLE_TYPES))
TRAINING_TYPES = {"token": "<i4", "left_out_log_prob": "<f8", "left_out_backoff": "<f4"}


@dataclass(frozen=True, kw_only=True)
class Header:
    sizes: tuple[int, ...]
    """Number of k-grams of the orders 1 … n; the first is V."""
    num_tokens: int
    """Of the text that leave-one-out is there for; 0 if there is none."""
    sha256: dict[str, str]
    """Of each file, by its stem."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays that must be there."""
        total = sum(self.sizes)
        found: dict[str, tuple[int, ...]] = {
            "key": (total - self.sizes[0],),
            "share": (total,),
            "backoff": (total - self.sizes[-1],),
        }
        if self.num_tokens:
            found |= {"token": (self.num_tokens,), "left_out_log_prob": (self.num_tokens,)}
            found["left_out_backoff"] = (self.num_tokens, len(self.sizes) - 1)
        return found


def save(folder: Path, model: NGram) -> None:
    """Write the model to a new folder, or in place of an old one, completely or not at all."""
    table, left_out = model
    sizes = tuple(len(share) for share in table.shares)
    num_tokens = 0 if left_out is None else len(left_out.token)
    header = Header(sizes=sizes, num_tokens=num_tokens, sha256={})
    parts: dict[str, Sequence[Any]] = dict(zip(TABLE_TYPES, _fields(table), strict=True))
    if left_out is not None:
        parts |= {name: (one,) for name, one in zip(TRAINING_TYPES, left_out, strict=True)}
    with new_folder(folder, replace=True) as temporary:
        for name, shape in header.shapes().items():
            _write(_file(temporary, name), parts[name], shape, (TABLE_TYPES | TRAINING_TYPES)[name])
            header.sha256[name] = file_sha256(_file(temporary, name))
        text = json.dumps({"format": FORMAT, "version": VERSION} | asdict(header), indent=2)
        (temporary / HEADER_FILE).write_text(text + "\n")


def _fields(table: Table) -> tuple[Sequence[Any], ...]:
    return table.keys, table.shares, table.backoffs


def _write(file: Path, parts: Sequence[Any], shape: tuple[int, ...], dtype: str) -> None:
    """One .npy of the parts, one after the other, without a copy of all of them in memory."""
    if 0 in shape:
        np.save(file, np.empty(shape, dtype))
        return
    array, start = np.lib.format.open_memmap(file, "w+", dtype, shape), 0
    for part in parts:
        for some in blocks(len(part)):
            array[start + some.start : start + some.stop] = part[some]
        start += len(part)
    array.flush()


def read_size(folder: Path) -> TableSize:
    """The size of the table in a folder, by its header alone."""
    header = _read_header(folder / HEADER_FILE)
    shapes = header.shapes()
    return TableSize(sum(header.sizes), sum(8 * shapes[name][0] for name in TABLE_TYPES))


def _read_header(path: Path) -> Header:
    content = read_json(path)
    try:
        header = from_json(Header, without_format(content, FORMAT, VERSION))
        if not header.sizes or min(header.sizes) < 0 or header.num_tokens < 0:
            raise ValueError(f"sizes must be at least 0, got {header.sizes}")
        if sorted(header.sha256) != sorted(header.shapes()):
            raise ValueError(f"sha256 must name its arrays, got {sorted(header.sha256)}")
    except ValueError as error:
        raise ValueError(f"{path} must be the header of an n-gram model: {error}") from None
    return header


def load(folder: Path) -> NGram:
    """The model in a folder, mapped read-only; raise for files that are not those written."""
    header = _read_header(folder / HEADER_FILE)
    arrays = {name: _read(folder, name, header) for name in header.shapes()}
    table = Table(
        _cut(arrays["key"], header.sizes[1:]),
        _cut(arrays["share"], header.sizes),
        _cut(arrays["backoff"], header.sizes[:-1]),
    )
    if not header.num_tokens:
        return NGram(table, None)
    return NGram(table, LeaveOneOut(*(arrays[name] for name in TRAINING_TYPES)))


def _read(folder: Path, name: str, header: Header) -> Any:
    file, wanted = _file(folder, name), header.sha256[name]
    if not file.is_file() or file_sha256(file) != wanted:
        raise ValueError(f"{file} must have sha256 {wanted}, got another or no file")
    # An empty file cannot be mapped.
    shape, dtype = header.shapes()[name], (TABLE_TYPES | TRAINING_TYPES)[name]
    array = np.load(file, mmap_mode="r" if 0 not in shape else None)
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise ValueError(f"{file} must be {dtype} {shape}, got {array.dtype.str} {array.shape}")
    return array


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _cut(array: Any, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Arrays of these sizes, one after the other."""
    return tuple(np.split(array, np.cumsum(sizes)[:-1])) if sizes else ()
