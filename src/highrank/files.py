"""Files and folders that are there completely or not at all, whenever the machine stops.

Take named files out of an archive that may be hostile: nothing is written anywhere else.

Where results go: checked before any work is done.
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
from typing import IO, NamedTuple
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes from training in one folder.
    fcntl = None  # type: ignore[assignment]

# What file systems without locks answer.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
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


COPY_BYTES = 1 << 20
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    RuntimeError,
)


class Member(NamedTuple):
    name: str
    is_file: bool
    """Neither a folder nor a link nor a device."""
    open: Callable[[], IO[bytes] | None]


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
        for member in _members(archive):
            name = _checked_name(member.name, archive)
            if name not in names:
                continue
            source = member.open() if member.is_file else None
            if source is None:
                raise ValueError(f"{member.name} in {archive.name} must be a plain file")
            with source, (folder / name).open("xb") as target:
                while block := source.read(COPY_BYTES):
                    left -= len(block)
                    if left < 0:
                        limit = f"{max_bytes:,} bytes"
                        raise ValueError(f"{archive.name} must unpack to at most {limit}")
                    target.write(block)
    except FileExistsError as error:
        name = Path(error.filename).name
        raise ValueError(f"{archive.name} must have {name} once, got it twice") from error
    except DAMAGE as error:
        raise ValueError(f"{archive.name} must be a sound zip or tar archive: {error}") from error


def is_archive(path: Path) -> bool:
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)
                yield Member(info.filename, is_file, partial(file.open, info))
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            yield Member(entry.name, entry.isreg(), partial(tar.extractfile, entry))


def _checked_name(name: str, archive: Path) -> str:
    """The last part of a member's path, if the path stays inside."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (*path.parts, "")[0]:
        raise ValueError(f"{archive.name} must only have paths inside it, got {name!r}")
    return path.name


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
