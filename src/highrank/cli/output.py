"""Where results go: checked before any work is done."""

import os
from pathlib import Path
from tempfile import TemporaryFile


def check_writable(path: Path) -> None:
    """Raise unless a file can be written at this path; nothing is left there."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"the output must be a file, got the folder {path}")
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        raise ValueError(f"the output must be a file that can be written, got {path}")
    if not folder.is_dir():
        raise ValueError(f"the output's folder must exist, got {path}: run mkdir -p {folder}")
    try:
        # Permissions do not tell: /proc and full disks have them. The file has no name.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"the output's folder must be writable, got {folder} ({error.strerror})"
        ) from None
