"""Archives friendly and hostile: wanted files come out, and nothing else happens."""

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile

import pytest

from highrank.data.sources import extract, is_archive

WANTED = {"a.txt", "b.txt"}


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


MAKERS = (make_zip, make_tar)


def extract_all(archive, tmp_path, max_bytes=10_000):
    folder = tmp_path / "out"
    folder.mkdir()
    extract(archive, WANTED, folder, max_bytes=max_bytes)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def link(name):
    """A member of a zip that is a link."""
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def special(name, kind):
    """A member of a tar that is no plain file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(("make", "empty"), [(make_zip, zipfile.ZipInfo("")), (make_tar, "")])
def test_only_wanted_files_come_out_flat(make, empty, tmp_path):
    members = [("./x/y/a.txt", b"1"), (empty, b""), ("x/b.txt", b"2"), ("c.txt", b"3" * 100_000)]
    archive = make(tmp_path / "archive", members)
    assert is_archive(archive) and not is_archive(tmp_path)
    assert extract_all(archive, tmp_path) == {"a.txt": b"1", "b.txt": b"2"}
    assert not is_archive(tmp_path / "out" / "a.txt")


OUTSIDE = ("../a.txt", "x/../../a.txt", "/a.txt", "..\\a.txt", "C:/a.txt")
TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3", b"5")


@pytest.mark.parametrize(
    ("make", "members", "message"),
    [
        *((make, [(name, b"")], "only have paths inside") for make in MAKERS for name in OUTSIDE),
        *((make_tar, [(special("a.txt", kind), b"")], "must be a plain file") for kind in TYPES),
        (make_zip, [(link("a.txt"), "/etc/passwd")], "a.txt in archive must be a plain file"),
        *((make, [("a.txt", b"0" * 3_000_000)], "at most 10,000 bytes") for make in MAKERS),
        *((make, [("x/a.txt", b""), ("y/a.txt", b"")], "have a.txt once") for make in MAKERS),
    ],
)
def test_hostile_archives_are_refused(make, members, message, tmp_path):
    archive = make(tmp_path / "archive", members)
    assert archive.stat().st_size < 10_000
    with pytest.raises(ValueError, match=message):
        extract_all(archive, tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} <= {"archive", "out", "a.txt"}
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) <= 10_000


@pytest.mark.parametrize("make", MAKERS)
def test_a_damaged_archive_is_an_error(make, tmp_path):
    archive = make(tmp_path / "archive", [("a.txt", bytes(range(256)) * 30)])
    content = bytearray(archive.read_bytes())
    content[60:90] = b"\0" * 30
    archive.write_bytes(content)
    with pytest.raises(ValueError, match="must be a sound zip or tar archive"):
        extract_all(archive, tmp_path)


def test_a_cut_gzip_is_an_archive_and_a_damaged_one(tmp_path):
    archive = make_tar(tmp_path / "archive", [("a.txt", bytes(range(256)) * 300)])
    for length in (3, 100, archive.stat().st_size // 2):
        cut = tmp_path / f"cut-{length}"
        cut.write_bytes(archive.read_bytes()[:length])
        assert is_archive(cut)
        with pytest.raises(ValueError, match="must be a sound zip or tar archive"):
            extract(cut, WANTED, tmp_path, max_bytes=100_000)
        (tmp_path / "a.txt").unlink(missing_ok=True)


def test_a_header_that_claims_to_be_long_takes_no_memory(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 300_000_000
    archive = tmp_path / "archive"
    with gzip.open(archive, "wb") as file:
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(30):
            file.write(bytes(10_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="must be a sound zip or tar archive"):
            extract_all(archive, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
