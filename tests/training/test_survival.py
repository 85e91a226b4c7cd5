"""Killed with SIGKILL at every point of a checkpoint, and resumed: the same run, to the bit."""

import json
import os
import random
import signal
import time
import traceback
import warnings

import pytest
import torch
from safetensors.torch import load_file

from highrank.data import atomic
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


# What a checkpoint is made of, in order; each is where the process may die.
STEPS = {
    "write of the checkpoint": (checkpoint.torch, "save"),
    "write of the model": (checkpoint, "save_file"),
    "sync": (atomic.os, "fsync"),
    "rename": (atomic.os, "replace"),
    "line of the log": (MetricsLog, "write"),
}


def with_failpoint(step, moment, count, work):
    """Do the work, and die before, during or after the count-th of these steps."""
    owner, name = STEPS[step]
    original, seen = getattr(owner, name), 0

    def patched(*arguments, **options):
        nonlocal seen
        seen += 1
        if seen == count and moment == "before":
            die()
        if seen == count and moment == "during":
            half_written(original)(*arguments, **options)
        result = original(*arguments, **options)
        if seen == count and moment == "after":
            die()
        return result

    def run():
        setattr(owner, name, patched)
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


# Two cycles of a run: its first checkpoint, and one in the middle.
POINTS = [
    (step, moment, count)
    for step in STEPS
    for moment in ("before", "during", "after")
    for count in (1, 4)
    if moment != "during" or step.startswith("write")
]


@pytest.mark.parametrize(("step", "moment", "count"), POINTS)
def test_killed_inside_a_checkpoint_and_resumed(step, moment, count, go, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    killed = in_child(with_failpoint(step, moment, count, lambda: go(folder)))
    assert killed == -signal.SIGKILL
    assert in_child(lambda: go(folder)) == 0
    assert_same(folder, uninterrupted)


def test_killed_at_ten_random_moments_and_resumed(go, uninterrupted, tmp_path):
    folder, rng = tmp_path / "run", random.Random(5)
    start = time.monotonic()
    assert in_child(lambda: go(tmp_path / "timed")) == 0
    elapsed, kills = time.monotonic() - start, 0
    while kills < 10:
        delay = rng.uniform(0.02, 0.3) * elapsed

        def work(delay=delay):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, delay)
            go(folder)

        code = in_child(work)
        kills += code != 0
        if code == 0:
            break
    assert kills >= 3
    assert in_child(lambda: go(folder)) == 0
    assert_same(folder, uninterrupted)
