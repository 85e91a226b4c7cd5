"""The files of a known corpus: the user's own, those of an installed package, or downloaded."""

import os
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from highrank.data.catalog import CATALOG, SOTU_TEST_FROM, SOTU_VALID_FROM
from highrank.data.download import fetch
from highrank.environment import install_hint
from highrank.files import extract, file_sha256, is_archive, is_disk_full

Files = dict[str, list[Path]]
Index = dict[str, list[Path]]
OnProgress = Callable[[float, str], None]

SPEECH = re.compile(r"(\d{4})-.+\.txt")


def own_files(name: str, source: Path, unpacked: Path) -> Files:
    """The files of each split that the user has.

    Args:
        source: a folder that has them at any depth, or has an archive of them; or the archive.
        unpacked: a folder to be made if there is something to unpack.
    """
    if source.is_dir():
        index = _index(source)
        packed = [path for archive in _archives(name) for path in index.get(archive, [])]
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
        + install_hint("data")
    )


def download_files(name: str, folder: Path, unpacked: Path, on_progress: OnProgress) -> Files:
    """The files of each split, fetched from the first address that has them.

    Args:
        folder: where downloads go. What arrived of one that broke off is there and is continued.
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
            for file in _archives(name) & {entry.name for entry in folder.iterdir()}:
                (folder / file).unlink()
            shutil.rmtree(unpacked, ignore_errors=True)
    raise OSError(
        f"{name} could not be downloaded:\n" + "\n".join(failures) + "\n"
        f"If you have its files, run `highrank data prepare {name} --from DIR`."
    )


def _download(
    name: str, address: str, folder: Path, unpacked: Path, on_progress: OnProgress
) -> Files:
    known = CATALOG[name]

    def get(file: str, url: str) -> Path:
        if not (folder / file).exists():
            fetch(
                url,
                folder / file,
                sha256=known.sha256.get(file),
                max_bytes=known.max_bytes,
                on_progress=on_progress,
            )
        return folder / file

    if address.endswith("/"):
        for split in known.files.values():
            for names in split:
                get(names[0], address + names[0])
        return _choose(name, _index(folder), folder)
    archive = get(*_file_and_url(address))
    on_progress(1.0, f"unpacking {archive.name}")
    return _unpack(name, archive, unpacked)


def _unpack(name: str, archive: Path, folder: Path) -> Files:
    known = CATALOG[name]
    wanted = {file for split in known.files.values() for names in split for file in names}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    extract(archive, wanted, folder, max_bytes=known.max_bytes)
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
    """Years are the first four digits of a name; the newest speeches are the test set."""
    files: Files = {"train": [], "valid": [], "test": []}
    for name, found in sorted(index.items()):
        if match := SPEECH.fullmatch(name):
            year = int(match[1])
            is_late = year >= SOTU_VALID_FROM
            split = "test" if year >= SOTU_TEST_FROM else "valid" if is_late else "train"
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


def _missing(name: str, index: Index) -> list[str]:
    """The published names of files that are there under no name."""
    places = [names for split in CATALOG[name].files.values() for names in split]
    return [names[0] for names in places if not any(file in index for file in names)]


def _index(folder: Path) -> Index:
    """The files at any depth, by name."""
    index: Index = {}
    for root, _, names in os.walk(folder):
        for name in names:
            index.setdefault(name, []).append(Path(root, name))
    return {name: sorted(paths) for name, paths in index.items()}


def _archives(name: str) -> set[str]:
    return {_file_and_url(address)[0] for address in CATALOG[name].addresses} - {""}


def _file_and_url(address: str) -> tuple[str, str]:
    return address.rsplit("/", 1)[1], address
