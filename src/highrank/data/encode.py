"""From text to token files, in bounded memory and in several processes: the text is read once.

The text is cut into parts. First the pieces of each part, such as words, get numbers of the part's
own, which go to a scratch file with a table of the pieces (`numbering.py`). Then the tables are
merged, the vocabulary is chosen, and the numbers of each part become ids, at its place in the token
file. A part whose table is there was finished, and is not read again.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.data.corpus import SPLITS, Recipe, Split, TokenType, token_file
from highrank.data.crew import OnBytes, perform
from highrank.data.numbering import END, Pieces, numbering_of
from highrank.data.subwords import is_subword, learn
from highrank.data.text import Span, parts_of, read_text
from highrank.data.vocabulary import EOS, UNK, Vocabulary
from highrank.files import from_json, read_json, write_atomically
from highrank.progress import OnProgress

Spans = Mapping[str, Sequence[Span]]
Integers = NDArray[Any]

CHUNK_TOKENS = 1 << 20
# All distinct tokens are kept in memory while tables are merged: so many take about 3 GB.
MAX_DISTINCT = 20_000_000
# Fractions of the time that are over when the text is read, and when tables are merged.
READ, MERGED = 0.7, 0.8
RECIPE_FILE, IDS_FILE = "recipe.json", "ids.npy"


class Encoded(NamedTuple):
    """What is known of the token files that were written."""

    vocabulary: Vocabulary
    dtype: TokenType
    splits: dict[str, Split]
    token_counts: list[int]
    """How often the training split has each token."""
    recipe: Recipe
    """With what was learned from the training split."""


class Part(NamedTuple):
    """A part of a split, and its files in the scratch folder."""

    split: str
    spans: Sequence[Span]
    place: Path
    """The name of its files without their endings."""

    @property
    def size(self) -> int:
        return sum(span.end - span.start for span in self.spans)

    @property
    def numbers(self) -> Path:
        """Four bytes for the number of each piece."""
        return self.place.with_suffix(".numbers")

    @property
    def table(self) -> Path:
        return self.place.with_suffix(".npz")

    @property
    def ids(self) -> Path:
        """The number of each token of the table among those of all parts."""
        return self.place.with_suffix(".npy")


def encode_text(
    spans: Spans,
    recipe: Recipe,
    folder: Path,
    scratch: Path,
    on_progress: OnProgress,
    processes: int = 1,
) -> Encoded:
    """Write train.bin, valid.bin and test.bin.

    Args:
        spans: the text of each split.
        folder: for the token files; exists.
        scratch: for four bytes per token; exists. What an interrupted call with the same text and
            recipe has left there is not done again.
    """
    recipe = _learned(spans, recipe, scratch, on_progress)
    parts = [
        Part(split, part, scratch / f"{split}-{index:05}")
        for split in SPLITS
        for index, part in enumerate(parts_of(spans[split]))
    ]
    _number(parts, processes, on_progress)
    tables = _merge(parts, on_progress)
    vocabulary = _choose_vocabulary(tables, recipe)
    dtype: TokenType = "<u2" if len(vocabulary) <= 1 << 16 else "<u4"
    ids = vocabulary.encode(tables.tokens).astype(dtype)
    np.save(scratch / IDS_FILE, ids)
    _write(parts, tables, folder, np.dtype(dtype).itemsize, processes, on_progress)
    splits, counts = {}, {}
    for name in SPLITS:
        counts[name] = np.zeros(len(vocabulary), dtype=np.int64)
        np.add.at(counts[name], ids, tables.counts[name])
        with token_file(folder, name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        splits[name] = Split(
            num_tokens=tables.num_tokens(name),
            num_unknown=0 if vocabulary.unk is None else int(counts[name][vocabulary.unk]),
            sha256=digest,
            num_bytes=tables.num_bytes[name],
            num_chars=tables.num_chars[name],
        )
    return Encoded(vocabulary, dtype, splits, counts["train"].tolist(), recipe)


def _learned(spans: Spans, recipe: Recipe, scratch: Path, on_progress: OnProgress) -> Recipe:
    """The recipe with what its tokenizer learns; kept in the scratch folder."""
    file = scratch / RECIPE_FILE
    if not file.exists():
        if is_subword(recipe.tokenizer):
            on_progress(0.0, f"learning {recipe.tokenizer}")
            subwords = learn(recipe.tokenizer, _lines(spans["train"], recipe))
            recipe = replace(recipe, subwords=subwords)
        text = json.dumps(asdict(recipe))
        write_atomically(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    _read_recipe.cache_clear()
    return _read_recipe(str(file))


@lru_cache(maxsize=1)
def _read_recipe(file: str) -> Recipe:
    return from_json(Recipe, read_json(Path(file)))


def _lines(spans: Sequence[Span], recipe: Recipe) -> Iterator[str]:
    """The lines of a split, those that are longer than a block in parts."""
    for span in spans:
        for text, _ in read_text(span):
            yield from (text.lower() if recipe.lower else text).split(END)


def _number(parts: Sequence[Part], processes: int, on_progress: OnProgress) -> None:
    """Number the pieces of the parts that are not finished."""
    left = [part for part in parts if not _is_numbered(part)]
    total = sum(part.size for part in parts)
    done = total - sum(part.size for part in left)

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_progress(READ * (done / total), f"reading, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    tasks = [
        {"spans": [(str(path), start, end) for path, start, end in spans], "place": str(place)}
        for _, spans, place in left
    ]
    perform("highrank.data.encode:number_part", tasks, processes, report)


def _is_numbered(part: Part) -> bool:
    if not part.table.exists():
        return False
    with np.load(part.table) as table:
        return bool(part.numbers.stat().st_size == 4 * table["counts"].sum())


def number_part(spans: Sequence[tuple[str, int, int]], place: str, on_bytes: OnBytes) -> None:
    """Write the numbers of a part's pieces, and then their table."""
    part = Part("", [Span(Path(path), start, end) for path, start, end in spans], Path(place))
    recipe = _read_recipe(str(part.place.with_name(RECIPE_FILE)))
    numbering, counts = numbering_of(recipe), np.zeros(0, dtype=np.int64)
    num_bytes, num_chars = 0, 0
    with part.numbers.open("wb") as file:
        for text, size, is_last in _blocks(part.spans):
            num_bytes += len(text) if text.isascii() else len(text.encode())
            num_chars += len(text)
            if text and is_last and not text.endswith(END):
                text += END
            found = numbering.number(text.lower() if recipe.lower else text)
            counts = _sum(counts, np.bincount(found))
            _check_distinct(len(counts), part)
            file.write(found.astype("<u4").tobytes())
            on_bytes(size)
        file.flush()
        os.fsync(file.fileno())
    tokens = numbering.tokens()
    table: dict[str, Any] = {
        "tokens": np.frombuffer("\0".join(chain.from_iterable(tokens)).encode(), np.uint8),
        "lengths": np.array([len(piece) for piece in tokens], dtype=np.int64),
        "counts": _sum(counts, np.zeros(len(tokens), dtype=np.int64)),
        "sizes": np.array([num_bytes, num_chars]),
    }

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **table)

    write_atomically(part.table, save)


def _blocks(spans: Sequence[Span]) -> Iterator[tuple[str, int, bool]]:
    """Yield each block of text, its size in the file, and whether a span ends with it."""
    for span in spans:
        position = span.start
        for text, size in read_text(span):
            position += size
            yield text, size, position == span.end


def _check_distinct(size: int, part: Part) -> None:
    if size > MAX_DISTINCT:
        raise ValueError(
            f"a corpus must have at most {MAX_DISTINCT:,} distinct tokens, got more in "
            f"{part.spans[-1].path}: is it text with spaces? Try --tokenizer characters or bpe:8000"
        )


def _sum(first: Integers, second: Integers) -> Integers:
    """The sum of two arrays, the shorter one with zeros at its end."""
    short, long = sorted((first, second), key=len)
    total = long.copy()
    total[: len(short)] += short
    return total


class Tables(NamedTuple):
    """The tables of all parts as one."""

    tokens: list[str]
    """Of all splits, in order of first appearance."""
    counts: dict[str, Integers]
    """How often each split has each of them."""
    part_sizes: list[int]
    """Tokens of each part."""
    num_bytes: dict[str, int]
    num_chars: dict[str, int]

    def num_tokens(self, split: str) -> int:
        return int(self.counts[split].sum())


def _merge(parts: Sequence[Part], on_progress: OnProgress) -> Tables:
    pieces = Pieces()
    counts = {name: np.zeros(0, dtype=np.int64) for name in SPLITS}
    num_bytes, num_chars = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    part_sizes = []
    for index, part in enumerate(parts):
        on_progress(READ + (MERGED - READ) * index / len(parts), "merging vocabularies")
        with np.load(part.table) as table:
            text = table["tokens"].tobytes()
            occurrences = table["counts"].repeat(table["lengths"])
            sizes = table["sizes"].tolist()
        ids = pieces.number_list(text)
        _check_distinct(len(pieces), part)
        np.save(part.ids, ids.astype(np.uint32))
        found = np.zeros(len(pieces), dtype=np.int64)
        np.add.at(found, ids, occurrences)
        counts[part.split] = _sum(counts[part.split], found)
        part_sizes.append(int(occurrences.sum()))
        num_bytes[part.split] += sizes[0]
        num_chars[part.split] += sizes[1]
    for name in SPLITS:
        if not counts[name].any():
            raise ValueError(
                f"the {name} split must not be empty, but the text has no line for it: give it "
                "more lines, or a folder that has train.txt, valid.txt and test.txt"
            )
        counts[name] = _sum(counts[name], np.zeros(len(pieces), dtype=np.int64))
    return Tables(pieces.in_order(), counts, part_sizes, num_bytes, num_chars)


def _choose_vocabulary(tables: Tables, recipe: Recipe) -> Vocabulary:
    if recipe.subwords is not None:
        return Vocabulary(tuple(recipe.subwords.vocabulary))
    tokens = tables.tokens
    if recipe.vocabulary == "frequency":
        counts = tables.counts["train"]
        frequent = np.flatnonzero(counts >= recipe.min_count).tolist()
        by_name = np.array(sorted(frequent, key=tokens.__getitem__), dtype=np.int64)
        by_count = by_name[np.argsort(-counts[by_name], kind="stable")]
        names = map(tokens.__getitem__, by_count.tolist())
        tokens = [UNK, EOS, *(name for name in names if name not in (UNK, EOS))]
        tokens = tokens[: recipe.max_vocab]
    if (size := len(tokens) - (UNK in tokens) - (EOS in tokens)) < 2:
        raise ValueError(
            f"the vocabulary must have 2 tokens or more besides {UNK} and {EOS}, got {size}: "
            "give it more text, a lower --min-count or a higher --max-vocab"
        )
    return Vocabulary(tuple(tokens))


def _write(
    parts: Sequence[Part],
    tables: Tables,
    folder: Path,
    itemsize: int,
    processes: int,
    on_progress: OnProgress,
) -> None:
    """Write the ids of all parts, each at its place in the token file of its split."""
    tasks, ends = [], dict.fromkeys(SPLITS, 0)
    for part, size in zip(parts, tables.part_sizes, strict=True):
        target = str(token_file(folder, part.split))
        tasks.append({"place": str(part.place), "target": target, "offset": ends[part.split]})
        ends[part.split] += itemsize * size
    for name, end in ends.items():
        with token_file(folder, name).open("wb") as file:
            file.truncate(end)
    total, done = sum(ends.values()), 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_progress(MERGED + (1 - MERGED) * done / total, "writing token ids")

    perform("highrank.data.encode:write_part", tasks, processes, report)


def write_part(place: str, target: str, offset: int, on_bytes: OnBytes) -> None:
    """Turn the numbers of a part's pieces into ids of tokens."""
    part = Part("", (), Path(place))
    ids = np.load(part.place.with_name(IDS_FILE), mmap_mode="r")[np.load(part.ids)]
    with np.load(part.table) as table:
        lengths = table["lengths"]
    starts = np.cumsum(lengths) - lengths
    is_plain = bool((lengths == 1).all())
    with part.numbers.open("rb") as numbers, Path(target).open("r+b") as file:
        file.seek(offset)
        while block := numbers.read(4 * CHUNK_TOKENS):
            pieces = np.frombuffer(block, dtype="<u4")
            content = ids[pieces if is_plain else _expanded(pieces, starts, lengths)].tobytes()
            # Not tofile: it hides that the disk is full.
            file.write(content)
            on_bytes(len(content))


def _expanded(pieces: Integers, starts: Integers, lengths: Integers) -> Integers:
    """The places of the pieces' tokens in their table."""
    sizes = lengths[pieces]
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts[pieces] - before, sizes) + np.arange(sizes.sum())
