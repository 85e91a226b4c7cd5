"""How often the training split has each token: kept with a corpus and with each run on it."""

import json
from collections.abc import Sequence
from pathlib import Path

from highrank.files import checked, read_json, write_atomically

COUNTS_FILE = "token_counts.json"


def write_counts(folder: Path, counts: Sequence[int]) -> None:
    text = json.dumps(list(counts))
    write_atomically(folder / COUNTS_FILE, lambda temporary: temporary.write_text(text))


def read_counts(folder: Path, vocab_size: int) -> list[int]:
    """The counts in a folder, one for each token of the vocabulary."""
    path = folder / COUNTS_FILE
    content = read_json(path)
    try:
        counts = list(checked(tuple[int, ...], content, "the content"))
        if len(counts) != vocab_size or min(counts) < 0:
            raise ValueError(f"{vocab_size} counts are needed, got {len(counts)}")
    except ValueError as error:
        raise ValueError(f"{path} must be a list of counts: {error}") from None
    return counts
