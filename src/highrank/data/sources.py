"""The files of a known corpus: the user's own, those of an installed package, or downloaded."""

import hashlib
import re
import shutil
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from highrank.data.archive import extract, is_archive
from highrank.data.catalog import CATALOG, SOTU_TEST_FROM, SOTU_VALID_FROM
from highrank.data.corpus import SPLITS, OnProgress
from highrank.environment import install_hint
from highrank.files import file_sha256, is_disk_full

# Per split its files, in order; and all files of a folder, by name.
Files = dict[str, list[Path]]
Index = dict[str, list[Path]]

SPEECH = re.compile(r"(\d{4})-.+\.txt")

TIMEOUT_SECONDS = 30.0
COPY_BYTES = 1 << 18
# A broken connection is resumed as long as each attempt brings something.
ATTEMPTS = 8


def own_files(name: str, source: Path, unpacked: Path) -> Files:
    """The files of each split that the user has.

    Args:
        source: a folder that has them at any depth, or has an archive of them; or the archive.
        unpacked: a folder to be made if there is something to unpack.
    """
    if source.is_dir():
        index = _index(source)
        archives = [_last_part(address) for address in CATALOG[name].addresses]
        packed = [path for archive in archives for path in index.get(archive, [])]
        if not packed or not _missing(name, index):
            return _choose(name, index, source)
        source = packed[0]
    if CATALOG[name].package:
        raise ValueError(f"the files of {name} must be in a folder, got {source}")
    if not is_archive(source):
        raise ValueError(f"the files of {name} must be in a folder or an archive, got {source}")
    return _unpack(name, source, unpacked)


def package_files(name: str) -> Files:
    """The files of each split that an installed package brings."""
    package = CATALOG[name].package
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


def download_files(name: str, folder: Path, unpacked: Path, on_progress: OnProgress) -> Files:
    """The files of each split, fetched from the first address that has them.

    Args:
        folder: where downloads go. An interrupted one is resumed.
        unpacked: a folder to be made if there is something to unpack.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in CATALOG[name].addresses:
        try:
            return _download(name, address, folder, unpacked, on_progress)
        except (OSError, ValueError) as error:
            if is_disk_full(error):
                raise
            failures.append(f"  {address}: {error}")
            shutil.rmtree(unpacked, ignore_errors=True)
            if archive := _last_part(address):
                (folder / archive).unlink(missing_ok=True)
    raise OSError(
        f"{name} could not be downloaded:\n" + "\n".join(failures) + "\n"
        f"If you have its files, run `highrank data prepare {name} --from DIR`."
    )


def _download(
    name: str, address: str, folder: Path, unpacked: Path, on_progress: OnProgress
) -> Files:
    known = CATALOG[name]
    archive = _last_part(address)
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
        return _choose(name, _index(folder), folder)
    on_progress(1.0, f"unpacking {archive}")
    return _unpack(name, folder / archive, unpacked)


def _last_part(address: str) -> str:
    """The archive's name; empty if the address is a folder of the files."""
    return address.rsplit("/", 1)[1]


def _unpack(name: str, archive: Path, folder: Path) -> Files:
    wanted = {file for names in _places(name) for file in names}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    extract(archive, wanted, folder, max_bytes=CATALOG[name].max_bytes)
    return _choose(name, _index(folder), archive)


def _choose(name: str, index: Index, where: Path) -> Files:
    """The one file for each place, checked by its hash where that is known."""
    known = CATALOG[name]
    if known.package:
        return _speeches_by_year(index, where)
    if missing := _missing(name, index):
        raise ValueError(f"{where} must have the files of {name}, but has no {missing[0]}")
    files: Files = {}
    for split, places in known.files.items():
        files[split] = []
        for names in places:
            path = _only(next(index[file] for file in names if file in index), where)
            want = known.sha256.get(names[0])
            if want is not None and (got := file_sha256(path)) != want:
                raise ValueError(f"{path} must have sha256 {want}, got {got}")
            files[split].append(path)
    return files


def _speeches_by_year(index: Index, where: Path) -> Files:
    """Years are the first four digits of a name; the newest speeches are the test split."""
    files: Files = {split: [] for split in SPLITS}
    for name, found in sorted(index.items()):
        if match := SPEECH.fullmatch(name):
            year = int(match[1])
            split = SPLITS[(year >= SOTU_VALID_FROM) + (year >= SOTU_TEST_FROM)]
            files[split].append(_only(found, where))
    if not all(files.values()):
        raise ValueError(
            f"{where} must have speeches called YEAR-NAME.txt from before {SOTU_VALID_FROM} to "
            f"after {SOTU_TEST_FROM}, got {sum(map(len, files.values()))} files"
        )
    return files


def _only(found: list[Path], where: Path) -> Path:
    if len(found) > 1:
        several = " and ".join(map(str, found))
        raise ValueError(f"{where} must have one {found[0].name}, got {several}")
    return found[0]


def _places(name: str) -> list[tuple[str, ...]]:
    """The names that each file may have, the published one first."""
    return [names for split in CATALOG[name].files.values() for names in split]


def _missing(name: str, index: Index) -> list[str]:
    """The published names of files that are there under no name."""
    return [names[0] for names in _places(name) if not index.keys() & set(names)]


def _index(folder: Path) -> Index:
    """The files at any depth, by name."""
    index: Index = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            index.setdefault(path.name, []).append(path)
    return index


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
