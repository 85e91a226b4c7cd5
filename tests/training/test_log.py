"""The log is appended to, cut back, and belongs to one process at a time."""

import errno
import subprocess

import pytest

from highrank.run.folder import is_in_training
from highrank.training.log import MetricsLog, is_logged


def test_lines_come_back_and_are_cut(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(event="epoch", loss=1.5)
    text = log.text
    log.write(event="end")
    log.restore(text)
    log.write(event="other")
    assert log.read() == [{"event": "epoch", "loss": 1.5}, {"event": "other"}]
    assert (tmp_path / "metrics.jsonl").read_text() == log.text


def test_a_closed_log_is_anybodys(tmp_path):
    """Even if something, a traceback or a cache, still refers to it."""
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert is_in_training(tmp_path)
    log.close()
    log.close()
    assert not is_in_training(tmp_path) and log.read() == []
    MetricsLog(tmp_path / "metrics.jsonl").write(event="again")


def test_a_full_disk_is_named_with_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = MetricsLog(tmp_path / "metrics.jsonl")
    monkeypatch.setattr("highrank.training.log._write", full)
    with pytest.raises(OSError, match="metrics.jsonl") as error:
        log.write(event="epoch")
    assert error.value.filename == str(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("damage", ["", "{}", "\0" * 99, '{"event": "epoch", "loss": 9}\n'])
def test_a_file_that_lost_its_lines_gets_them_from_the_checkpoint(damage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(damage)
    text = '{"event": "epoch", "loss": 1.5}\n'
    MetricsLog(path).restore(text)
    assert path.read_text() == text


def test_of_an_older_checkpoint_only_whole_lines_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = '{"event": "epoch"}\n'
    for content, want in (
        (line * 2, line * 2),
        (line + line[:-3], line),
        (line + "\0" * 19, line),
        (line + "[1]\n" + line, line),
        (line + "7\n", line),
        ("", ""),
    ):
        path.write_text(content)
        assert MetricsLog(path).whole_lines(len(line) * 2) == want


def test_a_log_is_not_written_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("old")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="metrics.jsonl must be a plain file, got a link"):
        MetricsLog(tmp_path / "metrics.jsonl")
    assert (tmp_path / "precious").read_text() == "old"


def test_steps_have_ever_fewer_lines():
    assert [step for step in range(1, 64) if is_logged(step)] == list(range(1, 64))
    assert sum(map(is_logged, range(64, 128))) == sum(map(is_logged, range(4096, 8192))) == 32


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path, child):
    path = tmp_path / "metrics.jsonl"
    assert not is_in_training(tmp_path)
    code = (
        "import sys, pathlib; from highrank.training.log import MetricsLog\n"
        "log = MetricsLog(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    other = child("-c", code, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == "open\n"
    assert is_in_training(tmp_path)
    with pytest.raises(ValueError, match="must not be in training elsewhere, got"):
        MetricsLog(path)
    other.kill()
    other.wait()
    assert not is_in_training(tmp_path)
    MetricsLog(path).write(event="again")
