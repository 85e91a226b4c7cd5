"""The files of a known corpus: the user's own, those of an installed package, or downloaded."""

import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from http.client import HTTPException
from importlib.util import find_spec
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import IO, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from highrank.data.catalog import CATALOG, SOTU_TEST_FROM, SOTU_VALID_FROM
from highrank.data.corpus import SPLITS
from highrank.environment import install_hint
from highrank.files import file_sha256, is_disk_full
from highrank.progress import OnProgress

# Per split its files, in order.
Files = dict[str, list[Path]]

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


def own_files(name: str, source: Path, scratch: Path) -> Files:
    """The files of each split that the user has.

    Args:
        source: a folder that has them at any depth, or an archive of them.
        scratch: a folder to unpack to.
    """
    if source.is_dir():
        return _choose(name, source, source)
    if CATALOG[name].package:
        raise ValueError(f"the files of {name} must be in a folder, got {source}")
    if not source.is_file():
        raise ValueError(f"the files of {name} must be in a folder or an archive, got {source}")
    return _unpack(name, source, scratch)


def package_files(name: str) -> Files:
    """The files of each split that an installed package brings."""
    package = CATALOG[name].package
    assert package is not None, name
    spec = find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "data" / "speeches"
        if folder.is_dir():
            return _choose(name, folder, folder)
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
    for address in CATALOG[name].addresses:
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
    known = CATALOG[name]
    # Empty if the address is a folder of the files.
    archive = address.rsplit("/", 1)[1]
    for file in [archive] if archive else [names[0] for names in _places(name)]:
        if not (folder / file).exists():
            fetch(
                address.removesuffix(archive) + file,
                folder / file,
                sha256=known.sha256.get(file),
                max_bytes=known.max_bytes,
                on_progress=on_progress,
            )
    if not archive:
        return _choose(name, folder, folder)
    on_progress(1.0, f"unpacking {archive}")
    try:
        return _unpack(name, folder / archive, scratch)
    except (OSError, ValueError) as error:
        if not is_disk_full(error):
            (folder / archive).unlink()
        raise


def _unpack(name: str, archive: Path, scratch: Path) -> Files:
    folder = Path(mkdtemp(dir=scratch))
    wanted = {file for names in _places(name) for file in names}
    extract(archive, wanted, folder, max_bytes=CATALOG[name].max_bytes)
    return _choose(name, folder, archive)


def _places(name: str) -> list[tuple[str, ...]]:
    """The names that each file may have, the published one first."""
    return [names for split in CATALOG[name].files.values() for names in split]


def _choose(name: str, folder: Path, where: Path) -> Files:
    """The one file for each place, checked by its hash where that is known.

    Args:
        where: what the user knows the folder as.
    """
    known, index = CATALOG[name], _index(folder)
    if known.package:
        return _speeches_by_year(index, where)
    files: Files = {}
    for split, places in known.files.items():
        files[split] = []
        for names in places:
            file = next((file for file in names if file in index), None)
            if file is None:
                raise ValueError(f"{where} must have the files of {name}, but has no {names[0]}")
            path = _only(index[file], where)
            want = known.sha256.get(names[0])
            if want is not None and (got := file_sha256(path)) != want:
                raise ValueError(f"{path} must have sha256 {want}, got {got}")
            files[split].append(path)
    return files


def _speeches_by_year(index: dict[str, list[Path]], where: Path) -> Files:
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


def _index(folder: Path) -> dict[str, list[Path]]:
    """The files at any depth, by name."""
    index: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            index.setdefault(path.name, []).append(path)
    return index


def _only(found: list[Path], where: Path) -> Path:
    if len(found) > 1:
        several = " and ".join(map(str, found))
        raise ValueError(f"{where} must have one {found[0].name}, got {several}")
    return found[0]


def extract(archive: Path, names: Collection[str], folder: Path, *, max_bytes: int) -> None:
    """Write the plain files called one of `names`, wherever they are, flat into `folder`.

    Args:
        archive: zip, or tar in any compression.
        max_bytes: of all files together, unpacked; more is an error.
    """
    num_bytes = 0
    try:
        for name, size, file in _plain_files(archive, names):
            num_bytes += size
            if num_bytes > max_bytes:
                raise ValueError(f"{archive.name} must unpack to at most {max_bytes:,} bytes")
            with file, (folder / name).open("xb") as target:
                shutil.copyfileobj(file, target)
    except FileExistsError as error:
        name = Path(error.filename).name
        raise ValueError(f"{archive.name} must have {name} once, got it twice") from error
    except DAMAGED as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{archive.name} must be a sound zip or tar archive: {reason}") from error


def _plain_files(archive: Path, names: Collection[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content; no more than the size can be read."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as pack:
            for info in pack.infolist():
                name = PurePosixPath(info.filename).name
                if name in names and not info.is_dir():
                    yield name, info.file_size, pack.open(info)
        return
    with tarfile.open(archive, tarinfo=_Header) as tar:
        for entry in tar:
            name = PurePosixPath(entry.name).name
            if name in names and entry.isreg() and (file := tar.extractfile(entry)):
                yield name, entry.size, file


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

    What has arrived is in a .part beside `target`, and survives a broken connection and Ctrl-C: the
    next call asks for the rest.

    Args:
        sha256: of the whole file; another one is an error, and the download is thrown away.
        max_bytes: a larger file is an error.
    """
    part = target.with_name(f"{target.name}.part")
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
        part.unlink()
        raise ValueError(f"sha256 must be {sha256}, got {found}")
    part.replace(target)


def _fetch_rest(url: str, part: Path, max_bytes: int, on_progress: OnProgress) -> None:
    done = _size(part)
    headers = {"User-Agent": "highrank", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:
            # There is no more: the hash will tell whether it is all.
            return
        raise
    with response:
        # Some servers send the whole file again.
        done = done if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            while block := response.read(COPY_BYTES):
                done += len(block)
                if done > max_bytes:
                    part.unlink()
                    raise ValueError(f"a download must be at most {max_bytes:,} bytes, got more")
                file.write(block)
                on_progress(done / total if total else 0.0, f"{done / 1e6:,.1f} MB of {url}")
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
