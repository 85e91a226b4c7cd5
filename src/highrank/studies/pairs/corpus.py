"""The pairs of a study: read, split, cleaned, encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from highrank.data.pairs.dialogues import dialogue_pairs, read_dialogues
from highrank.data.pairs.encoded import EncodedPairs, Ragged
from highrank.data.pairs.leaks import is_seen
from highrank.data.pairs.reading import Pair, PairSplits, hold_out, read_pairs, split_files
from highrank.integrations.huggingface.pairs.encoding import Encoded, TextEncoder
from highrank.studies.pairs.settings import Settings

HELD_OUT = ("valid", "test")


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
    """Bytes of these targets as the model reads them, a newline after each."""
    num_too_long: int
    """Pairs of train that are left out because they have too many tokens."""
    num_cut: dict[str, int]
    """Pairs of valid and test of which a part is missing, because they have too many tokens."""
    sha256: dict[str, str]
    """Of the token ids."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    splits: PairSplits
    encoded: dict[str, EncodedPairs]
    facts: CorpusFacts
    unseen: tuple[int, ...]
    """Test pairs that do not stand in train, by their places."""
    test_bytes: tuple[int, ...]
    """Bytes of each test target as the model reads it, with a newline."""


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
    if len(paths) > 1:
        names = " ".join(map(str, paths))
        raise ValueError(f"dialogues must be one file, or a folder of splits, got {names}")
    return dialogue_pairs(read_dialogues(paths[0]), settings.context)


def encode_corpus(
    splits: PairSplits, num_seen: dict[str, int], encoder: TextEncoder, settings: Settings
) -> Corpus:
    """The token ids of all pairs; those of train that are too long are left out, others cut."""
    encoded, num_bytes, num_cut = {}, {}, {}
    for name, pairs in splits._asdict().items():
        sources = encoder.sources([pair.source for pair in pairs])
        targets = encoder.targets([pair.target for pair in pairs])
        is_cut = [any(both) for both in zip(sources.is_cut, targets.is_cut, strict=True)]
        kept = [row for row in range(len(pairs)) if name != "train" or not is_cut[row]]
        if not kept:
            raise ValueError(f"train must have a pair of at most {encoder.limit} tokens, got none")
        encoded[name] = EncodedPairs(
            *(Ragged.of(side.ids[row] for row in kept) for side in (sources, targets))
        )
        num_cut[name] = sum(is_cut)
        num_bytes[name] = [
            _num_bytes(pairs[row].target, targets, row, encoder, settings) for row in kept
        ]
    facts = CorpusFacts(
        num_pairs={name: len(pairs) for name, pairs in encoded.items()},
        num_seen=num_seen,
        is_cleaned=settings.drop_seen,
        num_tokens={name: pairs.num_targets for name, pairs in encoded.items()},
        num_bytes={name: sum(of_each) for name, of_each in num_bytes.items()},
        num_too_long=num_cut.pop("train"),
        num_cut=num_cut,
        sha256={name: _sha256(pairs) for name, pairs in encoded.items()},
    )
    seen = is_seen(splits.test, splits.train)
    return Corpus(
        splits=splits,
        encoded=encoded,
        facts=facts,
        unseen=tuple(place for place, known in enumerate(seen) if not known),
        test_bytes=tuple(num_bytes["test"]),
    )


def _num_bytes(
    text: str, targets: Encoded, row: int, encoder: TextEncoder, settings: Settings
) -> int:
    """Bytes of a target as far as its tokens are predicted, with a newline."""
    if targets.is_cut[row]:
        text = encoder.tokenizer.decode(targets.ids[row], skip_special_tokens=True)
    elif settings.lower and settings.is_from_scratch:
        text = text.lower()
    return len(text.encode()) + 1


def _sha256(pairs: EncodedPairs) -> str:
    found = sha256()
    for side in pairs:
        found.update(side.ids.astype("<i4").tobytes())
        found.update(side.starts.astype("<i8").tobytes())
    return found.hexdigest()
