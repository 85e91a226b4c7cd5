"""`highrank demo` as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest

from highrank.studies.demo.measure import plan


def test_the_demo_writes_a_page_a_picture_and_numbers(highrank, tmp_path, monkeypatch):
    """With a few steps of each fit: what full fits come to is in studies/demo/test_measure.py."""
    short = [replace(task, num_steps=3) for task in plan(seed=0, quick=True)]
    monkeypatch.setattr("highrank.studies.demo.measure.plan", lambda seed, quick: iter(short))
    page, picture = tmp_path / "demo.html", tmp_path / "demo.png"
    options = ("--json", "--threads", "1", "--out", page, "--picture", picture)
    code, out, errors = highrank("demo", *options)
    assert code == 0, errors
    result = json.loads(out)
    assert [language["name"] for language in result["languages"]] == ["factorised", "senses"]
    for language in result["languages"]:
        assert len(language["fits"]) == 8
        for fit in language["fits"]:
            assert fit["excess"] >= 0
            assert fit["rank_bound"] is None or fit["rank"] <= fit["rank_bound"]
    assert page.read_text().startswith("<!doctype html>")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "nowhere/page.html"], "the output's folder must exist, got nowhere/page.html"),
        (["--threads", "100000"], "threads must be between 1 and"),
        (["--seed", str(1 << 63)], f"seed must be between 0 and {(1 << 63) - 1}, got {1 << 63}"),
        (["--picture", "."], "the output must be a file, got the folder ."),
    ],
)
def test_mistakes_are_found_out_before_any_work(options, message, highrank):
    code, _, errors = highrank("demo", *options)
    assert code == 2
    assert message in errors.splitlines()[-1] and "Traceback" not in errors


def test_a_worker_that_dies_is_one_line(highrank, monkeypatch, tmp_path):
    def died(*_):
        raise BrokenProcessPool

    monkeypatch.setattr(ProcessPoolExecutor, "submit", died)
    code, _, errors = highrank("demo", "--quick", "--json", "--out", tmp_path / "page.html")
    assert code == 2
    assert errors.splitlines()[-1].startswith("highrank: Out of memory: a process that fitted a")


def test_ctrl_c_ends_the_demo_and_its_workers_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "highrank", "demo"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    started = process.stderr.readline()
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "Fitting heads" in started
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
