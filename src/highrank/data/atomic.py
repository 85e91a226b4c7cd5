"""Files and folders that are there completely or not at all, whenever the machine stops."""

import errno
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

# Folders may be shared between machines; whether a process lives can be asked on its own only.
HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node())


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
    is what it was before. What a process that was killed left behind is cleared by the next.

    Args:
        replace: whether `target` may exist; it is removed once the new folder is in its place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(target)
    folder = target.with_name(f".{target.name}-{HOST}-{os.getpid()}-{uuid4().hex[:8]}")
    folder.mkdir()
    try:
        with room_for(target):
            yield folder
            for file in folder.iterdir():
                _sync(file)
            _sync(folder)
            _move(folder, target, replace)
            _sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_for(target: Path) -> Iterator[None]:
    """A full disk is told with what was to be written, and what to do."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"there is no room on the disk for {target}: free some, "
            "or choose another place with --cache DIR"
        ) from error


def clear_leftovers(target: Path) -> None:
    """Temporary folders of dead processes go; one that was moved out of the way comes back."""
    if not target.parent.is_dir():
        return
    pattern = re.compile(re.escape(f".{target.name}-{HOST}-") + r"(\d+)-[0-9a-f]{8}(-old)?")
    for folder in sorted(target.parent.iterdir()):
        match = pattern.fullmatch(folder.name)
        if match is None or _is_alive(int(match[1])):
            continue
        if match[2] and not target.exists():
            os.rename(folder, target)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    """Whether there is such a process; where that cannot be asked, there may be."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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
