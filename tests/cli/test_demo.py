"""`highrank demo` as a user meets it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest


def highrank(*arguments, **options):
    command = [sys.executable, "-m", "highrank", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_quick_demo_writes_a_page_a_picture_and_numbers(tmp_path):
    done = highrank("demo", "--quick", "--json", "--picture", "demo.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [language["name"] for language in result["languages"]] == ["factorised", "senses"]
    for language in result["languages"]:
        for fit in language["fits"]:
            assert fit["excess"] >= 0
            assert fit["rank_bound"] is None or fit["rank"] <= fit["rank_bound"]
    assert (tmp_path / "highrank-demo.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_does_not_exist_is_found_out_before_any_work(tmp_path):
    done = highrank("demo", "--out", str(tmp_path / "nowhere" / "page.html"))
    assert done.returncode == 2
    assert "folder must exist" in done.stderr and "mkdir -p" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_thread_at_all_is_refused():
    done = highrank("demo", "--threads", "0")
    assert done.returncode == 2
    assert done.stderr == "highrank: threads must be at least 1, got 0\n"


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_that_cannot_be_is_refused(seed):
    done = highrank("demo", "--seed", str(seed))
    assert done.returncode == 2
    assert f"seed must be between 0 and {(1 << 63) - 1}, got {seed}" in done.stderr


def test_ctrl_c_ends_the_demo_and_its_workers_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "highrank", "demo"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    started = process.stderr.readline()
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "Fitting heads" in started
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 20
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
