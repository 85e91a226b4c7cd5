"""Folders that appear whole or not at all, archives friendly and hostile, outputs checked early."""

import errno
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from highrank import files
from highrank.files import HOST, check_writable, extract, is_archive, new_folder, write_atomically


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_a_file_that_cannot_be_written_whole_stays_as_it_was(failure, tmp_path):
    def half(path):
        path.write_text("half")
        raise failure

    (tmp_path / "file").write_text("old")
    with pytest.raises(failure):
        write_atomically(tmp_path / "file", half)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    write_atomically(tmp_path / "file", lambda path: path.write_text("new"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def write(target, text, replace=False):
    with new_folder(target, replace=replace) as folder:
        (folder / "file").write_text(text)


def test_a_folder_appears_with_its_files_and_nothing_else(tmp_path):
    write(tmp_path / "deep" / "new", "text")
    assert (tmp_path / "deep" / "new" / "file").read_text() == "text"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["new"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, MemoryError])
def test_a_failure_inside_leaves_nothing(failure, tmp_path):
    with pytest.raises(failure), new_folder(tmp_path / "new", replace=False) as folder:
        (folder / "file").write_text("half")
        raise failure
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_full_disk_is_an_error_and_leaves_what_was_there(step, replace, tmp_path, monkeypatch):
    if replace:
        write(tmp_path / "new", "old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, step, full)
    with pytest.raises(OSError, match="The disk is full: .*new was not written.*--cache DIR"):
        write(tmp_path / "new", "text", replace)
    monkeypatch.undo()
    assert [path.read_text() for path in tmp_path.rglob("file")] == ["old"] * replace
    assert len(list(tmp_path.iterdir())) == replace


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    write(tmp_path / "new", "old")
    rename = os.rename

    def broken(source, target):
        if target == tmp_path / "new" and not source.name.endswith("-old"):
            raise PermissionError(errno.EPERM, "not allowed")
        rename(source, target)

    monkeypatch.setattr(files.os, "rename", broken)
    with pytest.raises(PermissionError):
        write(tmp_path / "new", "text", replace=True)
    assert (tmp_path / "new" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.fixture
def killed():
    """The number of a process that is no more."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_what_a_killed_process_left_is_cleared_by_the_next(killed, tmp_path):
    mine, dead = (f".new-{HOST}-{pid}-0123abcd" for pid in (os.getpid(), killed))
    elsewhere = f".new-{HOST}x-{killed}-0123abcd"
    for name in (mine, dead, elsewhere):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    write(tmp_path / "new", "text")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"new", mine, elsewhere}


def test_a_folder_that_a_killed_process_moved_away_comes_back(killed, tmp_path):
    write(tmp_path / "new", "old")
    os.rename(tmp_path / "new", tmp_path / f".new-{HOST}-{killed}-0123abcd-old")
    with pytest.raises(ValueError), new_folder(tmp_path / "new", replace=True):
        raise ValueError
    assert (tmp_path / "new" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_replacing_leaves_only_the_new_folder(tmp_path):
    write(tmp_path / "new", "old")
    write(tmp_path / "new", "text", replace=True)
    assert (tmp_path / "new" / "file").read_text() == "text"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_without_replace_an_existing_folder_stays(tmp_path):
    write(tmp_path / "new", "old")
    with pytest.raises(OSError):
        write(tmp_path / "new", "text")
    assert (tmp_path / "new" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


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


def test_a_folder_that_takes_files_is_left_as_it_was(tmp_path):
    (tmp_path / "old.html").write_text("old")
    for name in ("new.html", "old.html"):
        check_writable(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "old"


def test_a_name_alone_is_a_file_in_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_writable(Path("page.html"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path, message",
    [
        ("folder", "the output must be a file, got the folder"),
        ("nowhere/page.html", "the output's folder must exist, got .*: run mkdir -p"),
        ("file/page.html", "the output's folder must exist"),
        ("/proc/page.html", r"the output's folder must be writable, got /proc \(.+\)"),
        ("/dev/null", "the output must be a file that can be written, got /dev/null"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, path, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=message):
        check_writable(tmp_path / path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_is_protected_is_refused(tmp_path):
    (tmp_path / "old.html").write_text("")
    (tmp_path / "old.html").chmod(0o444)
    with pytest.raises(ValueError, match="must be a file that can be written"):
        check_writable(tmp_path / "old.html")
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match=r"must be writable, got .* \(Permission denied\)"):
        check_writable(tmp_path / "new.html")
