"""Pairs of texts, read from two files, from columns or from JSON lines, and their three splits."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from highrank.data.text import read_file

# How files of a split are called.
NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
# Of all pairs, for valid and for test, and most pairs of each.
HELD_OUT, MOST_HELD_OUT = 0.05, 1_000


class Pair(NamedTuple):
    source: str
    target: str


class PairSplits(NamedTuple):
    """Pairs to train on, to choose by, and to report."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_pairs(paths: Sequence[Path], columns: tuple[str, str] | None = None) -> list[Pair]:
    """Pairs with a text on both sides, spaces around them removed.

    Args:
        paths: sources and targets, a line each; or one file with a source, a tab and its target in
            each line (.tsv); or one with a JSON object in each line (.jsonl).
        columns: names of source and target in JSON, "source" and "target" unless given; in a .tsv,
            whose first line then names its columns. An object may have them below "translation".
    """
    if len(paths) == 2:
        sources, targets = ([*lines(path)] for path in paths)
        if len(sources) != len(targets):
            raise ValueError(
                f"{paths[0]} and {paths[1]} must have as many lines as each other, got "
                f"{len(sources):,} and {len(targets):,}"
            )
        found = list(map(Pair, sources, targets))
    elif len(paths) == 1 and paths[0].suffix in (".jsonl", ".json"):
        found = _json_pairs(paths[0], columns or ("source", "target"))
    elif len(paths) == 1 and paths[0].suffix in (".tsv", ".tab"):
        found = _column_pairs(paths[0], columns)
    else:
        names = " ".join(map(str, paths))
        raise ValueError(f"pairs must be two files, one .tsv or one .jsonl, got {names or 'none'}")
    found = [Pair(source.strip(), target.strip()) for source, target in found]
    if not (kept := [pair for pair in found if all(pair)]):
        raise ValueError(f"{paths[0]} must have a pair of two texts at least, got none")
    return kept


def lines(path: Path) -> list[str]:
    """The lines of a text file, without the empty one after the last newline."""
    found = read_file(path).split("\n")
    return found if found[-1] else found[:-1]


def _column_pairs(path: Path, columns: tuple[str, str] | None) -> list[Pair]:
    rows = [line.split("\t") for line in lines(path)]
    places = (0, 1)
    if columns is not None:
        missing = [name for name in columns if name not in rows[0]]
        if missing:
            named = ", ".join(rows[0])
            raise ValueError(f"{path} must have a column {missing[0]}, got {named} in its line 1")
        places, rows = (rows[0].index(columns[0]), rows[0].index(columns[1])), rows[1:]
    for number, row in enumerate(rows, 1 if columns is None else 2):
        if len(row) <= max(places):
            raise ValueError(f"{path}, line {number}: must have a source, a tab and a target")
    return [Pair(row[places[0]], row[places[1]]) for row in rows]


def _json_pairs(path: Path, columns: tuple[str, str]) -> list[Pair]:
    found = []
    for number, value in json_lines(path):
        row = value.get("translation", value) if isinstance(value, dict) else {}
        texts = [row.get(name) if isinstance(row, dict) else None for name in columns]
        if not all(isinstance(text, str) for text in texts):
            wanted = " and ".join(columns)
            raise ValueError(
                f"{path}, line {number}: must be an object with texts {wanted}: name the columns "
                "with --columns SOURCE TARGET"
            )
        found.append(Pair(*(" ".join(str(text).split()) for text in texts)))
    return found


def json_lines(path: Path) -> Iterable[tuple[int, object]]:
    """The number and the value of each line that is not empty."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                raise ValueError(f"{path}, line {number}: must be JSON, got {line[:40]}") from None


def split_files(folder: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """Files of train, valid and test of a folder: for each split one file with each ending.

    A name has the split's as a word, as in train.de, dialogues_train.txt or test_2016_flickr.en; of
    several, as test_2016 and test_2017, the first in the alphabet is taken. A split may be missing.
    """
    found: dict[str, list[Path]] = {}
    for split, names in NAMES.items():
        for path in sorted(folder.glob(f"*{endings[0]}")):
            stem = path.name.removesuffix(endings[0])
            siblings = [folder / (stem + ending) for ending in endings]
            words = stem.replace("_", " ").replace("-", " ").replace(".", " ").split()
            is_whole = all(sibling.is_file() for sibling in siblings)
            if is_whole and set(words) & set(names) and split not in found:
                found[split] = siblings
    if "train" not in found:
        wanted = " and ".join(f"train{ending}" for ending in endings)
        raise ValueError(f"{folder} must have {wanted}, got none")
    return found


def hold_out(pairs: Sequence[Pair], seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Pairs without a twentieth of them, 1,000 at most, and these.

    All pairs of a source are on one side: what is held out was never read.
    """
    by_source: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_source.setdefault(pair.source, []).append(pair)
    wanted = min(MOST_HELD_OUT, round(HELD_OUT * len(pairs)))
    if wanted < 1:
        raise ValueError(f"pairs must be 20 at least to hold out some of them, got {len(pairs)}")
    if len(by_source) < 2:
        raise ValueError(
            f"pairs must have two sources at least to hold out some of them, got {len(pairs):,} of "
            "one source"
        )
    sources = list(by_source)
    held_out: list[Pair] = []
    for index in np.random.default_rng(seed).permutation(len(sources)):
        if len(held_out) >= wanted:
            break
        held_out += by_source.pop(sources[index])
    return [pair for group in by_source.values() for pair in group], held_out
