"""Atomic writes, safe archives, hashes and locks.

What is written here is there completely or not at all, whenever the machine stops.
"""

import errno
import gzip
import hashlib
import lzma
import os
import platform
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes from training in one folder.
    fcntl = None  # type: ignore[assignment]

COPY_BYTES = 1 << 20
# Folders may be shared between machines; only this machine's processes can be asked for.
HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node())
# Errors of file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
DAMAGED_ARCHIVE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    RuntimeError,
)


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

    Its files are synced first. On any error, Ctrl-C included, it is removed and `target` stays as
    it was. What a killed process left behind is cleared by the next call.

    Args:
        replace: whether `target` may exist; it is removed once the new folder is in its place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(target)
    folder = target.with_name(f".{target.name}-{HOST}-{os.getpid()}-{uuid4().hex[:8]}")
    folder.mkdir()
    try:
        with explained_full_disk(target):
            yield folder
            for path in (*folder.iterdir(), folder):
                _sync(path)
            _move(folder, target, replace)
            _sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers(target: Path) -> None:
    """Remove temporary folders of dead processes; restore a target that one had moved away."""
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
    """Whether there is such a process; True where that cannot be asked."""
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


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explained_full_disk(target: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that names `target` and a way out."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"The disk is full: {target} was not written. Free some space, "
            "or choose another place with --cache DIR"
        ) from error


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
        # Permissions are not enough: /proc and full disks have them. The file has no name.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"the output's folder must be writable, got {folder} ({error.strerror})"
        ) from None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock_file(handle: int, is_shared: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process has it locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def is_archive(path: Path) -> bool:
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def extract(archive: Path, names: Collection[str], folder: Path, *, max_bytes: int) -> None:
    """Write the members called one of `names`, whatever folder they are in, flat into `folder`.

    The file names are ours, and links and devices are not followed: an archive cannot write outside
    the folder. One that tries to, by an absolute path or `..`, is refused as a whole.

    Args:
        archive: zip, or tar in any compression.
        max_bytes: of all files together, unpacked; more is an error.
    """
    left = max_bytes
    try:
        for path, open_file in _members(archive):
            name = _checked_name(path, archive)
            if name not in names:
                continue
            file = open_file() if open_file else None
            if file is None:
                raise ValueError(f"{path} in {archive.name} must be a plain file")
            with file, (folder / name).open("xb") as target:
                while block := file.read(COPY_BYTES):
                    left -= len(block)
                    if left < 0:
                        limit = f"{max_bytes:,} bytes"
                        raise ValueError(f"{archive.name} must unpack to at most {limit}")
                    target.write(block)
    except FileExistsError as error:
        name = Path(error.filename).name
        raise ValueError(f"{archive.name} must have {name} once, got it twice") from error
    except DAMAGED_ARCHIVE as error:
        raise ValueError(f"{archive.name} must be a sound zip or tar archive: {error}") from error


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None] | None]]:
    """Yield each member's path and a function that opens it, None unless it is a plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)
                yield info.filename, partial(file.open, info) if is_file else None
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            yield entry.name, partial(tar.extractfile, entry) if entry.isreg() else None


def _checked_name(path: str, archive: Path) -> str:
    """The last part of a member's path, if the path stays inside."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in (*parts.parts, "")[0]:
        raise ValueError(f"{archive.name} must only have paths inside it, got {path!r}")
    return parts.name
