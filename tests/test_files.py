"""Folders that appear whole or not at all."""

import errno
import os
import subprocess

import pytest

from highrank import files as atomic
from highrank.files import HOST, new_folder


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
def test_a_full_disk_leaves_what_was_there_and_says_so(step, replace, tmp_path, monkeypatch):
    if replace:
        write(tmp_path / "new", "old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, step, full)
    with pytest.raises(OSError, match="no room on the disk for .*new: .*--cache DIR"):
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

    monkeypatch.setattr(atomic.os, "rename", broken)
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
