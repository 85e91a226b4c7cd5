"""The log is appended to, cut back, and belongs to one process at a time."""

import subprocess
import sys

import pytest

from highrank.run import is_in_training
from highrank.training.log import MetricsLog


def test_lines_come_back_and_are_cut(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(event="epoch", loss=1.5)
    length = log.length
    log.write(event="end")
    log.cut(length)
    log.write(event="other")
    assert log.read() == [{"event": "epoch", "loss": 1.5}, {"event": "other"}]


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert not is_in_training(tmp_path)
    code = (
        "import sys, pathlib; from highrank.training.log import MetricsLog\n"
        "log = MetricsLog(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout.readline() == "open\n"
        assert is_in_training(tmp_path)
        with pytest.raises(ValueError, match="must not be in training elsewhere, got"):
            MetricsLog(path)
    finally:
        other.kill()
        other.communicate()
    assert not is_in_training(tmp_path)
    MetricsLog(path).write(event="again")
