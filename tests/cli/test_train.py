"""`highrank train` as a user meets it: in a process of its own."""

import json
import os
import random
import re
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
        command(*map(str, arguments)),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_run_ends_with_perplexities_files_and_samples(place):
    done = highrank(place, "train", "small-mos", "--corpus", "tale", *TINY, "--train.epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "valid perplexity" in done.stdout and "test  perplexity" in done.stdout
    assert "Samples at temperature 0.8:" in done.stdout
    # Components of a run this short do not specialise.
    assert "have collapsed" in done.stdout and "--model.embedding-size" in done.stdout
    run = place / "runs" / "small-mos-1"
    assert (run / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "config.json").read_text())["head"]["num_components"] == 4
    again = highrank(place, "train", "--resume=runs/small-mos-1", "--threads", "1")
    assert again.returncode == 0 and "finished" in again.stdout
    events = [
        json.loads(line)["event"] for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert [e for e in events if e != "step"] == ["epoch", "epoch", "end"]
    assert events.count("step") > 10
    both = highrank(place, "train", "ptb-mos", "--resume", "runs/small-mos-1")
    assert both.returncode == 2 and "--resume must come without a preset or a text" in both.stderr
    numbers = json.loads(highrank(place, "train", "--resume", "runs/small-mos-1", "--json").stdout)
    assert f"test  perplexity {numbers['test']['perplexity']:.2f}" in done.stdout
    assert f"valid perplexity {numbers['valid']['perplexity']:.2f}" in done.stdout
    assert f"I(component; token) = {numbers['specialisation']:.3f} nats" in done.stdout


# As a user's terminal without Unicode has it.
PLAIN_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_text_is_prepared_and_trained_in_one_command(place, tmp_path):
    text = tmp_path / "café.txt"
    text.write_text((place / "tale.txt").read_text().replace("cat", "café"), encoding="utf-8")
    done = subprocess.run(
        command("train", text, *TINY, "--train.epochs", "2", "--out", "own"),
        cwd=tmp_path,
        env=environment(place) | PLAIN_ASCII,
        capture_output=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    errors = done.stderr.decode("ascii")
    assert "Corpus caf: 3,600 tokens (words) to train on, 14 distinct, in" in errors
    assert re.search(r"head adaptive-pointer, \d,\d{3} parameters; 2 epochs\. --budget", errors)
    assert "caf\\xe9" in done.stdout.decode("ascii")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert config["corpus"] == "caf" and config["batch"]["batch_size"] == 4
    # Where no option says otherwise, the size of the text decides.
    assert config["head"]["kind"] == "adaptive-pointer" and config["valid_batch_size"] == 2


@pytest.mark.parametrize("option", [[], ["--corpus"]])
def test_a_text_that_was_prepared_before_is_taken_as_it_was(option, place, tmp_path):
    text = tmp_path / "letters.txt"
    text.write_text((place / "tale.txt").read_text())
    assert highrank(place, "data", "prepare", str(text), "--level", "char").returncode == 0
    rest = [*TINY, "--train.epochs", "1", "--json", "--out", str(tmp_path / "run")]
    done = highrank(place, "train", *option, str(text), *rest)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["corpus"] == "letters"
    assert json.loads(done.stdout)["test"]["perplexity"] < 20


def test_a_run_in_place_of_a_text_is_refused(place, tmp_path):
    (tmp_path / "config.json").write_text('{"format": "highrank run", "version": 3}')
    done = highrank(place, "train", str(tmp_path))
    assert done.returncode == 2 and f"highrank train --resume {tmp_path}" in done.stderr


@pytest.mark.parametrize("content", ["", "{}", '{"model_type": "gpt2"}', "[1]"])
def test_a_folder_with_a_configuration_of_another_kind_is_no_run(content, place, tmp_path):
    (tmp_path / "config.json").write_text(content)
    done = highrank(place, "train", str(tmp_path))
    assert done.returncode == 2 and "a folder of text must have files that end" in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_and_prints_how_to_resume(number, code, place, child):
    folder = f"long-{code}"
    long = ["--corpus", "tale", *TINY, "--train.epochs", "9999", "--out", folder]
    process = child("-m", "highrank", "train", *long, cwd=place, env=environment(place))
    log = place / folder / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    last = errors.splitlines()[-1]
    assert last == f"Saved. Resume with: highrank train --resume {folder} --threads 1"
    assert "Traceback" not in errors
    lines = len(log.read_text().splitlines())
    done = highrank(place, "train", "--resume", folder, "--threads", "1", "--budget", "1s")
    assert done.returncode == 0 and "out of time" in done.stdout
    assert len(log.read_text().splitlines()) > lines


def test_the_test_can_be_left_out_and_made_up_for(place):
    run = ["--corpus", "tale", *TINY, "--train.epochs", "1", "--out", "untested", "--json"]
    done = json.loads(highrank(place, "train", *run, "--no-test").stdout)
    assert done["test"] is None and done["valid"]["perplexity"] > 1
    again = ["--resume", "untested", "--threads", "1", "--test-batch-size", "4", "--json"]
    done = json.loads(highrank(place, "train", *again).stdout)
    assert done["test"]["perplexity"] > 1 and done["test_batch_size"] == 4
    end = json.loads((place / "untested" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["test_batch_size"]) == ("end", 4)


def test_a_budget_that_is_too_short_for_the_test_leaves_it_out(place):
    short = ["--corpus", "tale", *TINY, "--budget", "0.000001s", "--out", "short"]
    done = highrank(place, "train", *short)
    assert done.returncode == 0 and "is left out: `highrank evaluate`" in done.stderr
    assert "valid perplexity" in done.stdout and "test  perplexity" not in done.stdout


def test_a_mistake_is_one_line_and_leaves_no_run_behind(place):
    """As all of test_train_refusals.py; this one once ended the process itself."""
    before = {path.name for path in place.rglob("*")}
    done = highrank(place, "train", "--corpus", "tale", "--threads", "100000")
    assert done.returncode == 2
    assert done.stderr.startswith("highrank: threads must be between 1 and")
    assert len(done.stderr.splitlines()) == 1
    assert {path.name for path in place.rglob("*")} == before
