"""The files of a known corpus: the user's own, those of an installed package, or downloaded."""

import hashlib
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import IO, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from highrank.data.catalog import SOTU_TEST_FROM, SOTU_VALID_FROM, KnownCorpus, known_corpus
from highrank.data.corpus import SPLITS
from highrank.environment import install_hint
from highrank.files import file_sha256, is_disk_full
from highrank.progress import OnProgress

# Per split its files, in order; and all files of a folder, by name.
Files = dict[str, list[Path]]
Index = dict[str, list[Path]]

SPEECH = re.compile(r"(\d{4})-.+\.txt")

TIMEOUT_SECONDS = 30.0
COPY_BYTES = 1 << 18
# A broken connection is resumed as long as each attempt brings something.
ATTEMPTS = 8

DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    OverflowError,
    UnicodeError,
)
# Long names and attributes of files in a tar; in a sound one they have a few hundred bytes.
IN_MEMORY = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
MAX_HEADER_BYTES = 1 << 16
# First bytes of gzip, bzip2 and xz.
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")


def own_files(name: str, source: Path, scratch: Path, is_checked: bool = True) -> Files:
    """The files of each split that the user has.

    Args:
        source: a folder that has them at any depth, or has an archive of them; or the archive.
        scratch: a folder to unpack to.
        is_checked: whether they must be the published ones.
    """
    if source.is_dir():
        index = _index(source)
        archives = (address.rsplit("/", 1)[1] for address in _known(name).addresses)
        packed = [path for archive in archives for path in index.get(archive, [])]
        if not packed or not _missing(name, index):
            return _choose(name, index, source, is_checked)
        source = packed[0]
    if _known(name).package:
        raise ValueError(f"the files of {name} must be in a folder, got {source}")
    if not is_archive(source):
        raise ValueError(f"the files of {name} must be in a folder or an archive, got {source}")
    return _unpack(name, source, scratch, is_checked)


def package_files(name: str) -> Files:
    """The files of each split that an installed package brings."""
    package = _known(name).package
    assert package is not None, name
    spec = find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "data" / "speeches"
        if folder.is_dir():
            return _choose(name, _index(folder), folder)
    raise ValueError(
        f"corpus {name} comes with the Python package {package}, which is not installed: "
        f"run {install_hint('data')}"
    )


def download_files(name: str, folder: Path, scratch: Path, on_progress: OnProgress) -> Files:
    """The files of each split, fetched from the first address that has them.

    Args:
        folder: where downloads go. An interrupted one is resumed.
        scratch: a folder to unpack to.
    """
    failures = []
    for address in _known(name).addresses:
        try:
            return _download(name, address, folder, scratch, on_progress)
        except (OSError, ValueError) as error:
            if is_disk_full(error):
                raise
            failures.append(f"  {address}: {error}")
    raise OSError(
        f"{name} could not be downloaded:\n" + "\n".join(failures) + "\n"
        f"If you have its files, run `highrank data prepare {name} --from DIR`."
    )


def _download(
    name: str, address: str, folder: Path, scratch: Path, on_progress: OnProgress
) -> Files:
    known = _known(name)
    # Empty if the address is a folder of the files.
    archive = address.rsplit("/", 1)[1]
    files = [archive] if archive else [names[0] for names in _places(name)]
    for file in files:
        if not (folder / file).exists():
            fetch(
                address.removesuffix(archive) + file,
                folder / file,
                sha256=known.sha256.get(file),
                max_bytes=known.max_bytes,
                on_progress=on_progress,
            )
    if not archive:
        return _choose(name, {file: [folder / file] for file in files}, folder)
    on_progress(1.0, f"unpacking {archive}")
    try:
        return _unpack(name, folder / archive, scratch)
    except (OSError, ValueError) as error:
        if not is_disk_full(error):
            (folder / archive).unlink()
        raise


def _unpack(name: str, archive: Path, scratch: Path, is_checked: bool = True) -> Files:
    folder = Path(mkdtemp(dir=scratch))
    wanted = {file for names in _places(name) for file in names}
    extract(archive, wanted, folder, max_bytes=_known(name).max_bytes)
    return _choose(name, _index(folder), archive, is_checked)


def _places(name: str) -> list[tuple[str, ...]]:
    """The names that each file may have, the published one first."""
    return [names for split in _known(name).files.values() for names in split]


def _missing(name: str, index: Index) -> list[str]:
    """The published names of files that are there under no name."""
    return [names[0] for names in _places(name) if not index.keys() & set(names)]


def _choose(name: str, index: Index, where: Path, is_checked: bool = True) -> Files:
    """The one file for each place, checked by its hash where that is known."""
    known = _known(name)
    if known.package:
        return _speeches_by_year(index, where)
    if missing := _missing(name, index):
        raise ValueError(f"{where} must have the files of {name}, but has no {missing[0]}")
    files: Files = {}
    for split, places in known.files.items():
        files[split] = []
        for names in places:
            path = _only(next(index[file] for file in names if file in index), where)
            if is_checked:
                known.check_hash(names[0], path)
            files[split].append(path)
    return files


def _known(name: str) -> KnownCorpus:
    known = known_corpus(name)
    assert known is not None, name
    return known


def _speeches_by_year(index: Index, where: Path) -> Files:
    """Years are the first four digits of a name; the newest speeches are the test split."""
    files: Files = {split: [] for split in SPLITS}
    for name, found in sorted(index.items()):
        if match := SPEECH.fullmatch(name):
            year = int(match[1])
            split = "valid" if year >= SOTU_VALID_FROM else "train"
            split = "test" if year >= SOTU_TEST_FROM else split
            files[split].append(_only(found, where))
    if not all(files.values()):
        raise ValueError(
            f"{where} must have speeches called YEAR-NAME.txt from before {SOTU_VALID_FROM} to "
            f"after {SOTU_TEST_FROM}, got {sum(map(len, files.values()))} files"
        )
    return files


def _index(folder: Path) -> Index:
    """The files at any depth, by name."""
    index: Index = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            index.setdefault(path.name, []).append(path)
    return index


def _only(found: list[Path], where: Path) -> Path:
    if len(found) > 1:
        several = " and ".join(map(str, found))
        raise ValueError(f"{where} must have one {found[0].name}, got {several}")
    return found[0]


def is_archive(path: Path) -> bool:
    """Whether it is a zip, a tar, or compressed as a tar would be, sound or not."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(6).startswith(COMPRESSED) or zipfile.is_zipfile(file):
            return True
    try:
        with tarfile.open(path, "r:", tarinfo=_Header):
            return True
    except DAMAGED:
        return False


def extract(archive: Path, names: Collection[str], folder: Path, *, max_bytes: int) -> None:
    """Write the members called one of `names`, whatever folder they are in, flat into `folder`.

    An archive with an absolute path or `..` is refused as a whole.

    Args:
        archive: zip, or tar in any compression.
        max_bytes: of all files together, unpacked; more is an error.
    """
    num_bytes = 0
    try:
        for path, size, open_file in _members(archive):
            name = _checked_name(path, archive)
            if name not in names:
                continue
            file = open_file() if open_file else None
            if file is None:
                raise ValueError(f"{path} in {archive.name} must be a plain file")
            # No more than the size can be read.
            num_bytes += size
            if num_bytes > max_bytes:
                raise ValueError(f"{archive.name} must unpack to at most {max_bytes:,} bytes")
            with file, (folder / name).open("xb") as target:
                shutil.copyfileobj(file, target)
    except FileExistsError as error:
        name = Path(error.filename).name
        raise ValueError(f"{archive.name} must have {name} once, got it twice") from error
    except DAMAGED as error:
        # tarfile lists what each of its ways to open a file found, a line each.
        reason = str(error).partition(":\n")[0]
        raise ValueError(f"{archive.name} must be a sound zip or tar archive: {reason}") from error


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes] | None] | None]]:
    """Yield path, size and a function that opens it, None unless it is a plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as pack:
            for info in pack.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.filename.endswith("/") and kind in (0, stat.S_IFREG)
                yield info.filename, info.file_size, partial(pack.open, info) if is_file else None
        return
    with tarfile.open(archive, tarinfo=_Header) as tar:
        for entry in tar:
            is_file = entry.isreg()
            yield entry.name, entry.size, partial(tar.extractfile, entry) if is_file else None


def _checked_name(path: str, archive: Path) -> str:
    """The last part of a member's path, if the path stays inside."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in (*parts.parts, "")[0]:
        raise ValueError(f"{archive.name} must only have paths inside it, got {path!r}")
    return parts.name


class _Header(tarfile.TarInfo):
    """A header of a tar: tarfile reads what belongs to it into memory, as long as it says."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in IN_MEMORY and not 0 <= found.size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header must be short, got {found.size:,} bytes")
        return found


def fetch(
    url: str, target: Path, *, sha256: str | None, max_bytes: int, on_progress: OnProgress
) -> None:
    """Write what is at `url` to `target`.

    What has arrived is in a .part beside `target`, one for each address, and survives a broken
    connection and Ctrl-C: the next call asks for the rest, if the server still has the same file.

    Args:
        sha256: of the whole file; another one is an error, and the download is thrown away.
        max_bytes: a larger file is an error.
    """
    part = target.with_name(f"{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _fetch_rest(url, part, max_bytes, on_progress)
            break
        except (OSError, HTTPException) as error:
            if is_disk_full(error):
                raise
            if attempt == ATTEMPTS or _size(part) <= before:
                reason = error.reason if type(error) is URLError else error
                raise ConnectionError(str(reason) or type(error).__name__) from error
    if sha256 is not None and (found := file_sha256(part)) != sha256:
        _discard(part)
        raise ValueError(f"sha256 must be {sha256}, got {found}")
    part.replace(target)
    _discard(part)


def _fetch_rest(url: str, part: Path, max_bytes: int, on_progress: OnProgress) -> None:
    validator = _validator_file(part).read_text() if _validator_file(part).exists() else ""
    done = _size(part) if validator else 0
    headers = {"User-Agent": "highrank", "Accept-Encoding": "identity"}
    if done:
        # With If-Range, a server whose file has changed sends all of the new one.
        headers |= {"Range": f"bytes={done}-", "If-Range": validator}
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code != 416 or not done:
            raise
        # All of it may be here, if the last attempt ended after its last byte.
        if error.headers.get("Content-Range") != f"bytes */{done}":
            _discard(part)
            _fetch_rest(url, part, max_bytes, on_progress)
        return
    with response:
        found = response.headers.get("Content-Range", "")
        if response.status != 206:
            # The server sends the whole file.
            done = 0
            _validator_file(part).write_text(_strong_validator(response))
        elif not found.startswith(f"bytes {done}-"):
            raise ConnectionError(f"the server must send bytes {done}-, got {found!r}")
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            while block := response.read(COPY_BYTES):
                done += len(block)
                if done > max_bytes:
                    _discard(part)
                    raise ValueError(f"a download must be at most {max_bytes:,} bytes, got more")
                file.write(block)
                on_progress(done / total if total else 0.0, f"{done / 1e6:,.1f} MB of {url}")
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done:,} of {total:,} bytes")


def _strong_validator(response: HTTPResponse) -> str:
    """What identifies the server's file; empty if nothing does, so that it cannot be resumed."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".validator")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
