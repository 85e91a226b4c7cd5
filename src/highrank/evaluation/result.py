"""A number and all that it takes to trust it: one JSON file for each, in the run's folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from highrank.environment import Environment
from highrank.files import write_atomically

FORMAT = "highrank result"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation of one text."""

    value: float
    unit: str
    """What `value` is: "perplexity per word" or "perplexity per character"."""
    nats: float
    """Mean of a predicted token."""
    bits: float
    """The same, in bits per word or per character."""
    num_tokens: int
    """How many were predicted."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Of a text file: tokens outside the vocabulary, which were read as <unk>, and how many of them
    are distinct; empty for a split."""
    split: str
    """valid, test, or `text` and the name of a text file."""
    method: str
    """static, dynamic, cache or dynamic+cache."""
    settings: Mapping[str, Any]
    """Of the method, with the number of columns."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """What was tried on valid to find the settings; empty if they were given."""
    run: str
    model_sha256: str
    """Of model.safetensors."""
    corpus: str
    data_sha256: str
    """Of the tokens of the split, or of the text file."""
    seconds: float
    """For this evaluation, the search left out."""
    environment: Environment


def write_result(folder: Path, result: Result) -> Path:
    """A new file in the folder, named by date, method and split."""
    folder.mkdir(exist_ok=True)
    date = result.environment.date.replace(" ", "-").replace(":", "")
    # A name may have 255 bytes in all.
    split = result.split.encode()[:120].decode(errors="ignore")
    path = _reserve(folder, f"{date}-{result.method}-{split}")
    text = json.dumps({"format": FORMAT, "version": 1} | asdict(result), indent=2) + "\n"
    try:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _reserve(folder: Path, name: str) -> Path:
    """An empty file of a new name: another process that writes now takes the next."""
    path, n = folder / f"{name}.json", 1
    while True:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            n += 1
            path = folder / f"{name}-{n}.json"
        else:
            return path
