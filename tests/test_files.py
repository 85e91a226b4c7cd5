"""Files and folders appear whole or not at all; JSON and outputs are checked early."""

import errno
import os
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from highrank import files
from highrank.files import (
    HOST,
    check_writable,
    clear_temporaries,
    final_name,
    from_json,
    new_folder,
    read_json,
    write_atomically,
)


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


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    called = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=real: (called.append(n), f(*a)))
    write_atomically(tmp_path / "file", lambda path: path.write_text("new"))
    assert called == ["fsync", "replace", "fsync"]


def test_a_file_gets_the_mode_of_the_umask_whatever_its_writer_gives_it(tmp_path):
    def secretly(path):
        path.unlink()
        os.close(os.open(path, os.O_CREAT, 0o600))

    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", secretly)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["file", ".file.new"])
def test_a_link_is_replaced_and_not_followed(name, tmp_path):
    (tmp_path / "precious").write_text("old")
    (tmp_path / name).symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "file", lambda path: path.write_text("new"))
    assert (tmp_path / "precious").read_text() == "old"
    assert not (tmp_path / "file").is_symlink() and (tmp_path / "file").read_text() == "new"


def test_what_a_killed_write_left_is_cleared(tmp_path):
    for name in (".file.new", "file", ".other.new"):
        (tmp_path / name).touch()
    clear_temporaries([tmp_path / "file", tmp_path / "never"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.new", "file"]


class State(StrEnum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    state: State = State.GOOD


@dataclass(frozen=True)
class Outer:
    size: int
    rate: float | None = None
    sizes: tuple[int, ...] = ()
    inner: Inner = Inner()
    is_on: bool = False


def test_a_dataclass_comes_back_from_json():
    inner = {"kind": "b", "state": "bad"}
    content = {"size": 3, "rate": 1, "sizes": [1, 2], "inner": inner, "is_on": True}
    found = from_json(Outer, content)
    assert found == Outer(3, 1.0, (1, 2), Inner("b", State.BAD), True)
    assert found.inner.state is State.BAD


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"the content must be an object, got \[\]"),
        ({}, "size is missing"),
        ({"size": 1.0}, "size must be a whole number, got 1.0"),
        ({"size": True}, "size must be a whole number, got True"),
        ({"size": 1, "rate": "2"}, "rate must be a number, got '2'"),
        ({"size": 1, "rate": 10**400}, "rate must be a number, got 1000"),
        ({"size": 1, "sizes": 3}, "sizes must be a list, got 3"),
        ({"size": 1, "sizes": [[1]]}, r"sizes must be a whole number, got \[1\]"),
        ({"size": 1, "inner": None}, "inner must be an object, got None"),
        ({"size": 1, "inner": {"kind": "c"}}, "inner.kind must be one of a, b, got 'c'"),
        ({"size": 1, "inner": {"state": "c"}}, "inner.state must be one of good, bad, got 'c'"),
        ({"size": 1, "is_on": 1}, "is_on must be true or false, got 1"),
        ({"size": 1, "new": 1}, "must have known fields only, got 'new'"),
    ],
)
def test_other_types_in_json_are_named(content, message):
    with pytest.raises(ValueError, match=message):
        from_json(Outer, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "must be JSON, got"),
        (b"\xff", "must be JSON, got"),
        (b"[NaN]", "must be JSON, got NaN instead of a number"),
        (b"[" * 100_000, "must be JSON, got too deep a nest"),
        (b"1" * 10_000, "must be JSON, got"),
        (None, "could not be read: No such file"),
    ],
)
def test_what_is_not_json_is_one_sentence_with_the_file_s_name(content, message, tmp_path):
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"x.json {message}"):
        read_json(tmp_path / "x.json")


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
        ("loop", "the output must be a file that can be written, got "),
        ("nowhere/page.html", "the output's folder must exist, got .*: run mkdir -p"),
        ("file/page.html", "the output's folder must exist"),
        ("/proc/page.html", r"the output's folder must be writable, got /proc \(.+\)"),
        ("/dev/null", "the output must be a file that can be written, got /dev/null"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, path, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
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


def test_a_full_disk_is_named_with_the_file(tmp_path):
    def full(temporary):
        temporary.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=f"The disk is full: {tmp_path / 'new'} was not written"):
        write_atomically(tmp_path / "new", full)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_knows_its_final_name(tmp_path):
    with new_folder(tmp_path / "my-model", replace=False) as folder:
        assert final_name(folder) == "my-model" != folder.name
    assert final_name(tmp_path / "my-model") == "my-model"
