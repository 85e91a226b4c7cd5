"""Archives from elsewhere: wanted files come out, and nothing else happens.

The file names are ours, links and devices are not followed, and memory is bounded whatever an
archive's headers say.
"""

import bz2
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

# Files are copied in blocks of this size. Only headers could be read in larger ones, and a header
# of a sound archive is a few hundred bytes.
BLOCK_BYTES = 1 << 16
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    OverflowError,
    UnicodeError,
)
# By the first bytes of a file.
COMPRESSIONS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}


def is_archive(path: Path) -> bool:
    """Whether it is a zip or a tar in any compression, sound or not."""
    if not path.is_file():
        return False
    if zipfile.is_zipfile(path):
        return True
    try:
        with _decompressed(path) as file:
            return tarfile.is_tarfile(file)
    except (*DAMAGED, OSError):
        return _compression(path) is not None


def extract(archive: Path, names: Collection[str], folder: Path, *, max_bytes: int) -> None:
    """Write the members called one of `names`, whatever folder they are in, flat into `folder`.

    An archive with an absolute path or `..` is refused as a whole.

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
                while block := file.read(BLOCK_BYTES):
                    left -= len(block)
                    if left < 0:
                        limit = f"{max_bytes:,} bytes"
                        raise ValueError(f"{archive.name} must unpack to at most {limit}")
                    target.write(block)
    except FileExistsError as error:
        name = Path(error.filename).name
        raise ValueError(f"{archive.name} must have {name} once, got it twice") from error
    except DAMAGED as error:
        raise ValueError(f"{archive.name} must be a sound zip or tar archive: {error}") from error


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None] | None]]:
    """Yield each member's path and a function that opens it, None unless it is a plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.filename.endswith("/") and kind in (0, stat.S_IFREG)
                yield info.filename, partial(file.open, info) if is_file else None
        return
    with _decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for entry in tar:
            yield entry.name, partial(tar.extractfile, entry) if entry.isreg() else None


class _Blocks:
    """A file for tarfile, which reads a header as long as it claims to be: not a long one."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.seek, self.tell = file.seek, file.tell

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= BLOCK_BYTES:
            raise tarfile.ReadError(f"a header must have at most {BLOCK_BYTES:,} bytes, got {size}")
        return self.file.read(size)


def _decompressed(path: Path) -> _Blocks:
    return _Blocks((_compression(path) or Path.open)(path, "rb"))


def _compression(path: Path) -> Callable[..., Any] | None:
    with path.open("rb") as file:
        start = file.read(6)
    found = (opener for magic, opener in COMPRESSIONS.items() if start.startswith(magic))
    return next(found, None)


def _checked_name(path: str, archive: Path) -> str:
    """The last part of a member's path, if the path stays inside."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in (*parts.parts, "")[0]:
        raise ValueError(f"{archive.name} must only have paths inside it, got {path!r}")
    return parts.name
