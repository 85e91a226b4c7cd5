"""Where prepared corpora live."""

import os
import re
import sys
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def cache_folder(cache: Path | None = None) -> Path:
    """The argument, else `$HIGHRANK_CACHE`, else highrank in the user's cache folder."""
    if cache is not None:
        return cache
    if own := os.environ.get("HIGHRANK_CACHE"):
        return Path(own)
    if user := os.environ.get("XDG_CACHE_HOME"):
        return Path(user) / "highrank"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "highrank"
    if local := os.environ.get("LOCALAPPDATA"):
        return Path(local) / "highrank"
    return Path.home() / ".cache" / "highrank"


def corpus_folder(name: str, cache: Path | None = None) -> Path:
    """Where the corpus of that name is, or would be."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a corpus' name must be letters, digits, '.', '_' or '-', got {name!r}")
    return cache_folder(cache) / "corpora" / name
