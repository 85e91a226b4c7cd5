"""Outputs are refused before any work, and the check leaves nothing behind."""

import os
from pathlib import Path

import pytest

from highrank.files import check_writable


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
