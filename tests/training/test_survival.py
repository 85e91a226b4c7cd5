"""Killed with SIGKILL at every point of a checkpoint, and resumed: the same run, to the bit."""

import json
import os
import random
import signal
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from highrank import files as atomic
from highrank.training import checkpoint
from highrank.training.log import MetricsLog
from highrank.training.loop import Run


def in_child(work):
    """Run in a forked process; returns its exit code, negative for a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(write):
    """As `write`, but the machine stops when half of the file is there."""

    def fail(value, path, *rest):
        write(value, path, *rest)
        os.truncate(path, os.path.getsize(path) // 2)
        die()

    return fail


# What a checkpoint is made of; the process may die at each. All have the file's path at the end.
STEPS = {
    "write of a checkpoint": (checkpoint.torch, "save"),
    "write of a model": (checkpoint, "save_file"),
    "sync": (atomic, "_sync"),
    "rename": (atomic.os, "replace"),
}


def with_failpoint(step, file, moment, count, work):
    """Do the work, and die before, during or after the count-th of these steps for this file."""
    owner, name = STEPS[step]
    original, seen = getattr(owner, name), 0

    def patched(*arguments, **options):
        nonlocal seen
        is_it = Path(arguments[-1]).name in (file, f".{file}.new")
        seen += is_it
        if is_it and seen == count and moment == "before":
            die()
        if is_it and seen == count and moment == "during":
            half_written(original)(*arguments, **options)
        result = original(*arguments, **options)
        if is_it and seen == count and moment == "after":
            die()
        return result

    def run():
        setattr(owner, name, patched)
        work()

    return run


def with_failpoint_in_the_log(moment, count, work):
    """The same for the count-th line of metrics.jsonl."""
    original, seen = MetricsLog.write, 0

    def patched(log, **values):
        nonlocal seen
        seen += 1
        if seen == count and moment == "before":
            die()
        original(log, **values)
        if seen == count and moment == "after":
            die()

    def run():
        MetricsLog.write = patched
        work()

    return run


def outcome(folder):
    """Everything a run leaves, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    trainer = torch.load(folder / "trainer.pt", weights_only=True)["trainer"]
    return lines, load_file(folder / "model.safetensors"), trainer["model"], trainer["best"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "run"


def assert_same(one, two):
    for found, want in zip(outcome(one), outcome(two), strict=True):
        if isinstance(want, dict):
            assert found.keys() == want.keys()
            assert all(torch.equal(found[name], want[name]) for name in want)
        else:
            assert found == want


@pytest.fixture
def go(config, corpus):
    return lambda folder: Run(config, corpus, folder).go()


@pytest.fixture
def uninterrupted(whole, go):
    if not whole.exists():
        assert in_child(lambda: go(whole)) == 0
    return whole


# The first time and one in the middle. The folder, called run, is synced after each rename.
POINTS = [
    (step, file, moment, count)
    for step, file, counts in (
        ("write of a checkpoint", "trainer.pt", (1, 4)),
        ("sync", "trainer.pt", (1, 4)),
        ("rename", "trainer.pt", (1, 4)),
        ("write of a model", "model.safetensors", (1, 3)),
        ("sync", "model.safetensors", (1, 3)),
        ("rename", "model.safetensors", (1, 3)),
        ("sync", "run", (1, 3, 6)),
        ("rename", "vocabulary.json", (1,)),
        ("rename", "config.json", (1,)),
    )
    for moment in ("before", "during", "after")
    for count in counts
    if moment != "during" or step.startswith("write")
]


def assert_goes_on(killed, go, folder, uninterrupted):
    assert killed == -signal.SIGKILL
    assert in_child(lambda: go(folder)) == 0
    assert_same(folder, uninterrupted)


@pytest.mark.parametrize(("step", "file", "moment", "count"), POINTS)
def test_killed_inside_a_checkpoint_and_resumed(
    step, file, moment, count, go, uninterrupted, tmp_path
):
    folder = tmp_path / "run"
    killed = in_child(with_failpoint(step, file, moment, count, lambda: go(folder)))
    assert_goes_on(killed, go, folder, uninterrupted)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("count", [1, 4])
def test_killed_at_a_line_of_the_log_and_resumed(moment, count, go, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    killed = in_child(with_failpoint_in_the_log(moment, count, lambda: go(folder)))
    assert_goes_on(killed, go, folder, uninterrupted)


def test_killed_at_ten_random_moments_and_resumed(go, uninterrupted, tmp_path):
    rng, start = random.Random(5), time.monotonic()
    assert in_child(lambda: go(tmp_path / "timed")) == 0
    elapsed, kills, runs = time.monotonic() - start, 0, 0
    while kills < 10:
        delay, folder = rng.uniform(0.02, 0.3) * elapsed, tmp_path / f"run-{runs}"

        def work(delay=delay, folder=folder):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, delay)
            go(folder)

        if in_child(work) == 0:
            # It came to its end between two alarms: the next is killed in a run of its own.
            assert_same(folder, uninterrupted)
            runs += 1
        else:
            kills += 1
    assert in_child(lambda: go(folder)) == 0
    assert_same(folder, uninterrupted)
