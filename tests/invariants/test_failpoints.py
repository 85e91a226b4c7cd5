"""Killed with SIGKILL at each step of writing a file, and resumed: the same run, to the bit."""

import os
import random
import signal
from pathlib import Path

import pytest
import tiny

from highrank import files
from highrank.models import tensors
from highrank.training import checkpoint, log

# All that is done to files; the process may die at each call.
STEPS = (
    (checkpoint.torch, "save"),
    (tensors, "save_file"),
    (files, "_sync"),
    (files.os, "replace"),
    (log, "_write"),
    (log.os, "ftruncate"),
)
MOMENTS = ("before", "during", "after")
KINDS = ("finetuning", "adamw")
# More than a run has; those beyond its end are passed over.
NUM_CALLS = 150
NUM_FAST = 16


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_halfway(name, original, arguments):
    """Half of what was to be written is there."""
    if name == "_write":
        handle, content = arguments
        original(handle, content[: len(content) // 2])
    elif name == "save":
        original(*arguments)
        path = Path(arguments[1].name)
        os.truncate(path, path.stat().st_size // 2)
    elif name == "save_file":
        # safetensors writes beside the file, and renames.
        arguments[1].with_name(".tmpAbC123").write_bytes(b"half")
    die()


def with_failpoint(work, count, moment):
    """Do the work, and die at the count-th call of all."""
    seen = 0

    def patched(name, original):
        def call(*arguments):
            nonlocal seen
            seen += 1
            is_it = seen == count
            if is_it and moment == "before":
                die()
            if is_it and moment == "during":
                die_halfway(name, original, arguments)
            result = original(*arguments)
            if is_it:
                die()
            return result

        return call

    def run():
        for owner, name in STEPS:
            setattr(owner, name, patched(name, getattr(owner, name)))
        work()

    return run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failpoints")
    found = tiny.make_corpus(folder)
    tiny.warm_up(found, folder / "warm")
    return found


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    for kind in KINDS:
        assert tiny.exit_code(tiny.in_child(lambda kind=kind: go(corpus, kind, folder))) == 0
    return {kind: tiny.everything(folder / kind) for kind in KINDS}


def go(corpus, kind, folder):
    tiny.train(kind, corpus, folder / kind)


def assert_survives(corpus, uninterrupted, kind, count, moment, folder):
    work = with_failpoint(lambda: go(corpus, kind, folder), count, moment)
    if tiny.exit_code(tiny.in_child(work)) != 0:
        # What a killed save has left behind goes away with the next.
        assert tiny.exit_code(tiny.in_child(lambda: go(corpus, kind, folder))) == 0
    assert tiny.everything(folder / kind) == uninterrupted[kind]


FAST = random.Random(1)


@pytest.mark.parametrize(
    ("kind", "count", "moment"),
    [(FAST.choice(KINDS), FAST.randint(1, 60), FAST.choice(MOMENTS)) for _ in range(NUM_FAST)],
)
def test_a_run_killed_at_a_write_and_resumed_is_the_same(
    kind, count, moment, corpus, uninterrupted, tmp_path
):
    assert_survives(corpus, uninterrupted, kind, count, moment, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", range(1, NUM_CALLS))
def test_a_run_killed_at_any_write_and_resumed_is_the_same(
    kind, count, moment, corpus, uninterrupted, tmp_path
):
    assert_survives(corpus, uninterrupted, kind, count, moment, tmp_path)


def test_a_run_killed_again_and_again_while_it_resumes_is_the_same(corpus, uninterrupted, tmp_path):
    for count in (70, 1, 2, 3, 5, 8, 40):
        work = with_failpoint(lambda: go(corpus, "finetuning", tmp_path), count, "during")
        assert tiny.exit_code(tiny.in_child(work)) == -signal.SIGKILL
    assert tiny.exit_code(tiny.in_child(lambda: go(corpus, "finetuning", tmp_path))) == 0
    assert tiny.everything(tmp_path / "finetuning") == uninterrupted["finetuning"]
