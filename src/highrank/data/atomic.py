"""Files and folders that are there completely or not at all, whenever the machine stops."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary name, sync, rename, sync the folder.

    Args:
        write: makes the file at the path it is given.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextmanager
def new_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that takes its place at the end.

    Its files are synced first. Whatever goes wrong, Ctrl-C included, it disappears, and `target`
    is what it was before.

    Args:
        replace: whether `target` may exist; it is removed once the new folder is in its place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = target.with_name(f".{target.name}-{uuid4().hex[:8]}")
    folder.mkdir()
    try:
        yield folder
        for file in folder.iterdir():
            _sync(file)
        _sync(folder)
        _move(folder, target, replace)
        _sync(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                f"there is no room on the disk for {target}: free some, "
                "or choose another place with --cache DIR"
            ) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, target: Path, replace: bool) -> None:
    if not (replace and target.exists()):
        os.rename(folder, target)
        return
    old = folder.with_name(folder.name + "-old")
    os.rename(target, old)
    try:
        os.rename(folder, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    # Windows cannot open folders, and writes their entries at once.
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
