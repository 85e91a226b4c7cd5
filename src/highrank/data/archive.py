"""Take named files out of an archive that may be hostile: nothing is written anywhere else."""

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

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
