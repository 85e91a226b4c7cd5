"""`highrank train` as a user meets it: in a process of its own."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

TINY = [
    "--model.embedding-size",
    "8",
    "--model.hidden-sizes",
    "12",
    "10",
    "--head.num-components",
    "2",
    "--threads",
    "1",
    "--batch.batch-size",
    "4",
    "--valid-batch-size",
    "2",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a prepared corpus called `tale`."""
    folder = tmp_path_factory.mktemp("place")
    words, rng = (
        ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"],
        random.Random(0),
    )
    lines = (" ".join(rng.choices(words, k=9)) for _ in range(400))
    (folder / "tale.txt").write_text("\n".join(lines))
    assert highrank(folder, "data", "prepare", "tale.txt").returncode == 0
    return folder


def command(*arguments):
    return [sys.executable, "-m", "highrank", *arguments]


def environment(folder):
    return os.environ | {"HIGHRANK_CACHE": str(folder / "cache")}


def highrank(folder, *arguments):
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_run_ends_with_perplexities_files_and_samples(place):
    done = highrank(place, "train", "small", "--corpus", "tale", *TINY, "--train.epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "valid perplexity" in done.stdout and "test  perplexity" in done.stdout
    assert "Samples at temperature 0.8:" in done.stdout
    # Components of a run this short do not specialise.
    assert "close to one softmax" in done.stdout and "--head.grow-at" in done.stdout
    run = place / "runs" / "small-1"
    assert (run / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "config.json").read_text())["head"]["num_components"] == 2
    again = highrank(place, "train", "--resume=runs/small-1", "--threads", "1")
    assert again.returncode == 0 and "finished" in again.stdout
    events = [
        json.loads(line)["event"] for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert events == ["epoch", "grow", "epoch", "end"]
    both = highrank(place, "train", "ptb-mos", "--resume", "runs/small-1")
    assert both.returncode == 2 and "--resume must come without a preset" in both.stderr
    numbers = json.loads(highrank(place, "train", "--resume", "runs/small-1", "--json").stdout)
    assert f"test  perplexity {numbers['test']['perplexity']:.2f}" in done.stdout
    assert f"valid perplexity {numbers['valid']['perplexity']:.2f}" in done.stdout
    assert f"I(component; token) = {numbers['specialisation']:.3f} nats" in done.stdout


def test_ctrl_c_saves_and_prints_how_to_resume(place):
    process = subprocess.Popen(
        command("train", "--corpus", "tale", *TINY, "--train.epochs", "9999", "--out", "long"),
        cwd=place,
        env=environment(place),
        stderr=subprocess.PIPE,
        text=True,
    )
    log = place / "long" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "highrank train --resume long --threads 1" in errors and "Traceback" not in errors
    done = highrank(place, "train", "--resume", "long", "--threads", "1", "--budget", "1s")
    assert done.returncode == 0 and "out of time" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "preset must be one of small, small-softmax"),
        (["--corpus", "nowhere"], "a corpus must be a prepared name"),
        (["ptb-mos"], "highrank data prepare penn-treebank"),
        (["--budget", "soon"], "a duration must be like 90s, 20m or 1.5h, got 'soon'"),
        (["--resume", "nothing"], "a run must be a folder that `highrank train` made, got nothing"),
        (["--corpus", "tale", "--head.kind", "softmax"], "got softmax: add --head.grow-at None"),
        (
            ["--corpus", "tale", "--head.kind", "softmax", "--head.grow-at", "None"],
            "for a tied softmax, got 192 and 64",
        ),
        (["--corpus", "tale", "--device", "gpu"], "device"),
        (["--corpus", "tale", "--threads", "0"], "threads must be at least 1, got 0"),
        (["--corpus", "tale", "--train.epochs", "0"], "train.epochs must be at least 1, got 0"),
        (["--corpus", "tale", "--budget", "0.001s"], "budget must be longer than the test"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_run_behind(arguments, message, place):
    before = {path.name for path in place.rglob("*")}
    done = highrank(place, "train", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert {path.name for path in place.rglob("*")} == before
