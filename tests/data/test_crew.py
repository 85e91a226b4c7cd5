"""Work in several processes: all of it, errors, and no process that stays behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from highrank.data.crew import perform

JOBS = """
import os, time
from pathlib import Path
def touch(path, on_bytes):
    on_bytes(1)
    Path(path).write_text(str(os.getpid()))
def fail(path, on_bytes):
    raise ValueError(f"{path} must be fine")
def fill(path, on_bytes):
    raise OSError(28, "No space left on device")
def die(path, on_bytes):
    os.kill(os.getpid(), 9)
def hang(path, on_bytes):
    Path(path).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
        on_bytes(1)
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    (tmp_path / "crew_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    yield [{"path": str(tmp_path / f"{number}.done")} for number in range(5)]
    sys.modules.pop("crew_jobs", None)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child of the dead is a zombie until somebody waits for it.
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] != "Z"


def ended(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


@pytest.mark.parametrize("processes", [1, 2])
def test_every_task_is_done_once(processes, jobs, tmp_path):
    done = []
    perform("crew_jobs:touch", jobs, processes, done.append)
    pids = {int(path.read_text()) for path in tmp_path.glob("*.done")}
    assert sum(done) == len(list(tmp_path.glob("*.done"))) == 5
    assert (os.getpid() in pids) == (processes == 1) and ended(pids - {os.getpid()})


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        ("fail", ValueError, "0.done must be fine"),
        ("fill", OSError, "No space left"),
        ("die", OSError, "ended by the system .*fewer --processes"),
    ],
)
def test_the_error_of_a_worker_is_raised(job, error, message, jobs):
    with pytest.raises(error, match=message):
        perform(f"crew_jobs:{job}", jobs[:1] * 2, 2, lambda size: None)


def test_an_interruption_ends_the_workers(jobs, tmp_path):
    def interrupt(size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform("crew_jobs:hang", jobs, 2, interrupt)
    assert ended({int(path.read_text() or 0) for path in tmp_path.glob("*.done")} - {0})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_the_process_that_started_them_is_killed(jobs, tmp_path):
    program = (
        "from highrank.data.crew import perform\n"
        f"perform('crew_jobs:hang', {jobs!r}, 2, lambda size: None)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE
    )
    files = [tmp_path / "0.done", tmp_path / "1.done"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    assert parent.communicate()[1] == b""
    assert ended([int(file.read_text()) for file in files])
