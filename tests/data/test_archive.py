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


MAKERS = pytest.mark.parametrize("make", [make_zip, make_tar])


def extract_all(archive, tmp_path, max_bytes=10_000):
    folder = tmp_path / "out"
    folder.mkdir()
    extract(archive, WANTED, folder, max_bytes=max_bytes)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@MAKERS
def test_only_wanted_files_come_out_flat(make, tmp_path):
    members = [("./x/y/a.txt", b"1"), ("x/b.txt", b"2"), ("x/c.txt", b"3" * 100_000)]
    archive = make(tmp_path / "archive", members)
    assert is_archive(archive)
    assert extract_all(archive, tmp_path) == {"a.txt": b"1", "b.txt": b"2"}


@MAKERS
@pytest.mark.parametrize("name", ["../a.txt", "x/../../a.txt", "/a.txt", "..\\a.txt", "C:/a.txt"])
def test_paths_that_lead_outside_are_refused(make, name, tmp_path):
    archive = make(tmp_path / "archive", [(name, b"evil")])
    with pytest.raises(ValueError, match="only have paths inside it"):
        extract_all(archive, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3", b"5"])
def test_links_devices_and_folders_in_a_tar_are_not_files(kind, tmp_path):
    info = tarfile.TarInfo("a.txt")
    info.type, info.linkname = kind, "/etc/passwd"
    archive = make_tar(tmp_path / "archive", [(info, b"")])
    with pytest.raises(ValueError, match="a.txt in archive must be a plain file"):
        extract_all(archive, tmp_path)


def test_links_in_a_zip_are_not_files(tmp_path):
    info = zipfile.ZipInfo("a.txt")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = make_zip(tmp_path / "archive", [(info, "/etc/passwd")])
    with pytest.raises(ValueError, match="must be a plain file"):
        extract_all(archive, tmp_path)


@MAKERS
def test_a_bomb_is_stopped_at_the_limit(make, tmp_path):
    archive = make(tmp_path / "archive", [("a.txt", b"0" * 3_000_000), ("b.txt", b"1")])
    assert archive.stat().st_size < 10_000
    with pytest.raises(ValueError, match="unpack to at most 10,000 bytes"):
        extract_all(archive, tmp_path)
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) <= 10_000


@MAKERS
def test_two_files_of_one_name_are_refused(make, tmp_path):
    archive = make(tmp_path / "archive", [("x/a.txt", b"1"), ("y/a.txt", b"2")])
    with pytest.raises(ValueError, match="must have a.txt once"):
        extract_all(archive, tmp_path)


@MAKERS
def test_a_damaged_archive_is_an_error(make, tmp_path):
    archive = make(tmp_path / "archive", [("a.txt", bytes(range(256)) * 30)])
    content = bytearray(archive.read_bytes())
    content[60:90] = b"\0" * 30
    archive.write_bytes(content)
    with pytest.raises(ValueError, match="must be a sound zip or tar archive"):
        extract_all(archive, tmp_path)


def test_text_is_no_archive(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    assert not is_archive(tmp_path / "a.txt") and not is_archive(tmp_path)


def test_a_cut_gzip_is_an_archive_and_a_damaged_one(tmp_path):
    archive = make_tar(tmp_path / "archive", [("a.txt", bytes(range(256)) * 300)])
    for length in (3, 100, archive.stat().st_size // 2):
        cut = tmp_path / f"cut-{length}"
        cut.write_bytes(archive.read_bytes()[:length])
        assert is_archive(cut)
        with pytest.raises(ValueError, match="must be a sound zip or tar archive"):
            extract(cut, WANTED, tmp_path, max_bytes=100_000)
        (tmp_path / "a.txt").unlink(missing_ok=True)


@pytest.mark.parametrize(("make", "name"), [(make_zip, zipfile.ZipInfo("")), (make_tar, "")])
def test_a_member_without_a_name_is_passed_over(make, name, tmp_path):
    archive = make(tmp_path / "archive", [(name, b"1"), ("a.txt", b"2")])
    assert extract_all(archive, tmp_path) == {"a.txt": b"2"}


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
