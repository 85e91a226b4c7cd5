"""The pairs of a study: read, split, cleaned, encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from highrank.data.pairs.dialogues import dialogue_pairs, read_dialogues
from highrank.data.pairs.encoded import EncodedPairs, Ragged
from highrank.data.pairs.leaks import is_seen
from highrank.data.pairs.reading import Pair, PairSplits, hold_out, read_pairs, split_files
from highrank.studies.pairs.settings import Settings

HELD_OUT = ("valid", "test")
LONGEST = 512


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """The pairs, in numbers."""

    num_pairs: dict[str, int]
    """Of each split."""
    num_seen: dict[str, int]
    """Pairs of valid and test that stand in train, case and spaces folded; all, also if dropped."""
    is_cleaned: bool
    """Whether they were left out."""
    num_tokens: dict[str, int]
    """Target tokens of each split, ends included."""
    num_bytes: dict[str, int]
    """Bytes of the targets, a newline after each."""
    num_too_long: int
    """Pairs of train that are left out because they have too many tokens."""
    sha256: dict[str, str]
    """Of the token ids."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    splits: PairSplits
    encoded: dict[str, EncodedPairs]
    facts: CorpusFacts
    unseen: tuple[int, ...]
    """Test pairs that do not stand in train, by their places."""


def read_corpus(settings: Settings) -> tuple[PairSplits, dict[str, int]]:
    """The splits, without seen pairs if the settings say so, and how many there were."""
    train, valid, test = _splits(settings)
    if not test:
        train, test = hold_out(train)
    if not valid:
        train, valid = hold_out(train, seed=1)
    held_out, num_seen = {"valid": valid, "test": test}, {}
    for name, pairs in held_out.items():
        seen = is_seen(pairs, train)
        num_seen[name] = sum(seen)
        if settings.drop_seen:
            held_out[name] = [pair for pair, known in zip(pairs, seen, strict=True) if not known]
            if not held_out[name]:
                raise ValueError(f"{name} must have a pair that does not stand in train, got none")
    return PairSplits(train, held_out["valid"], held_out["test"]), num_seen


def _splits(settings: Settings) -> PairSplits:
    """Pairs of the files that were named; empty where there are none."""
    files = {"train": list(map(Path, settings.data))}
    for path in files["train"]:
        if not path.exists():
            raise ValueError(f"pairs must be files or a folder, got {path}, which does not exist")
    if len(settings.data) == 1 and (folder := files["train"][0]).is_dir():
        files = split_files(folder, _endings(folder, settings))
    for name in HELD_OUT:
        if given := getattr(settings, name):
            files[name] = list(map(Path, given))
    return PairSplits(
        *(_read(files[name], settings) if name in files else [] for name in PairSplits._fields)
    )


def _endings(folder: Path, settings: Settings) -> tuple[str, ...]:
    if settings.columns is not None and settings.task != "dialogue":
        found = tuple(f".{name}" for name in settings.columns)
        if any(folder.glob(f"*{found[0]}")):
            return found
    endings = (".txt", ".jsonl") if settings.task == "dialogue" else (".tsv", ".jsonl")
    for ending in endings:
        if any(folder.glob(f"*{ending}")):
            return (ending,)
    kinds = sorted({path.suffix for path in folder.iterdir() if path.suffix})
    raise ValueError(
        f"--columns must name the endings of sources and targets in {folder}, as in --columns de "
        f"en, got none: there are {', '.join(kinds) or 'no files'}"
    )


def _read(paths: Sequence[Path], settings: Settings) -> list[Pair]:
    if settings.task != "dialogue":
        return read_pairs(paths, settings.columns)
    dialogues = (one for path in paths for one in read_dialogues(path))
    return dialogue_pairs(dialogues, settings.context)


def encode_corpus(
    splits: PairSplits, num_seen: dict[str, int], tokenizer: Any, settings: Settings, limit: int
) -> Corpus:
    """The token ids of all pairs.

    Args:
        limit: most tokens of a text; longer pairs of train are left out, others cut.
    """
    encoded, num_too_long = {}, 0
    for name, pairs in splits._asdict().items():
        sides = [_encode(tokenizer, [pair[side] for pair in pairs], side) for side in (0, 1)]
        rows = list(zip(*sides, strict=True))
        if name == "train":
            kept = [row for row in rows if max(map(len, row)) <= limit]
            num_too_long, rows = len(rows) - len(kept), kept
        cut = [[ids[: limit - 1] + ids[-1:] for ids in row] for row in rows]
        encoded[name] = EncodedPairs(*(Ragged.of(row[side] for row in cut) for side in (0, 1)))
    facts = CorpusFacts(
        num_pairs={name: len(pairs) for name, pairs in encoded.items()},
        num_seen=num_seen,
        is_cleaned=settings.drop_seen,
        num_tokens={name: pairs.num_targets for name, pairs in encoded.items()},
        num_bytes={
            name: sum(len(pair.target.encode()) + 1 for pair in pairs)
            for name, pairs in splits._asdict().items()
        },
        num_too_long=num_too_long,
        sha256={name: _sha256(pairs) for name, pairs in encoded.items()},
    )
    seen = is_seen(splits.test, splits.train)
    unseen = tuple(place for place, known in enumerate(seen) if not known)
    return Corpus(splits=splits, encoded=encoded, facts=facts, unseen=unseen)


def _encode(tokenizer: Any, texts: list[str], side: int) -> list[list[int]]:
    # Some tokenizers have another form for targets.
    found = tokenizer(**{"text_target" if side else "text": texts}, verbose=False)["input_ids"]
    return [list(ids) for ids in found]


def _sha256(pairs: EncodedPairs) -> str:
    found = sha256()
    for side in pairs:
        found.update(side.ids.astype("<i4").tobytes())
        found.update(side.starts.astype("<i8").tobytes())
    return found.hexdigest()
