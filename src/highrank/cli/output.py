"""Where results go: checked before any work is done."""

import os
from pathlib import Path


def check_writable(path: Path) -> None:
    """Raise unless a file can be written at this path."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"the output must be a file, got the folder {path}")
    if not folder.is_dir():
        raise ValueError(f"the output's folder must exist, got {path}: run mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the output's folder must be writable, got {folder}")
