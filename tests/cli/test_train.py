"""`highrank train` as a user meets it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from highrank.presets.small import RECOMMENDED

TINY = shlex.split(
    "--model.embedding-size 8 --model.hidden-sizes 12 10 --threads 1 --batch.batch-size 4 "
    "--valid-batch-size 2"
)


@pytest.fixture
def train(highrank):
    return partial(highrank, "train")


def test_a_run_ends_with_perplexities_files_and_samples(train, trained):
    tiny = (*TINY, "--train.epochs", "2")
    code, printed, errors = train("small-mos", "--corpus", "tale", *tiny)
    assert code == 0 and "Samples at temperature 0.8, without <unk>:" in printed, errors
    # Components of a run this short do not specialise.
    assert "have collapsed" in printed and "--model.embedding-size" in printed
    run = trained / "runs" / "small-mos-1"
    assert (run / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert f"The page with curve, samples and settings: {(run / 'report.html').as_uri()}" in printed
    assert json.loads((run / "config.json").read_text())["head"]["num_components"] == 4
    code, again, _ = train("--resume=runs/small-mos-1", "--threads", "1")
    assert code == 0 and "finished" in again
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    events = [line["event"] for line in lines]
    assert [e for e in events if e != "step"] == ["epoch", "epoch", "end"]
    assert events.count("step") > 10
    code, _, errors = train("ptb-mos", "--resume", "runs/small-mos-1")
    assert code == 2 and "--resume must come without a preset or a text" in errors
    numbers = json.loads(train("--resume", "runs/small-mos-1", "--json")[1])
    assert f"test  perplexity {numbers['test']['perplexity']:.2f}" in printed
    assert f"{numbers['test']['bits_per_byte']:.3f} bits per byte, 0.0% <unk>" in printed
    page = (run / "report.html").read_text()
    assert f"Perplexity {numbers['test']['perplexity']:.2f} per word on test." in page
    assert page.count('class="sample"') == 3 and "train.epochs" in page and "<svg" in page
    assert page.count("Copy</button>") == 2
    more = "highrank generate runs/small-mos-1 --temperature 0.8 --no-unk"
    assert f"More of it: {more}\n" in printed
    assert "</span> ".join(f'<span class="whole">{word}' for word in more.split()) in page
    assert f"valid perplexity {numbers['valid']['perplexity']:.2f}" in printed
    assert f"I(component; token) = {numbers['specialisation']:.3f} nats" in printed


def test_a_text_is_prepared_and_trained_in_one_command(trained, tmp_path):
    """In a terminal without Unicode."""
    text = tmp_path / "café.txt"
    text.write_text((trained / "tale.txt").read_text().replace("cat", "café"), encoding="utf-8")
    command = [sys.executable, "-m", "highrank", "train", text, *TINY, "--train.epochs", "2"]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [*command, "--out", "own"],
        cwd=tmp_path,
        env=os.environ | {"HIGHRANK_CACHE": str(tmp_path / "cache")} | ascii_only,
        capture_output=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    errors = done.stderr.decode("ascii")
    assert re.search(r"Corpus caf: \d,\d{3} tokens \(words\) to train on, 14 distinct, in", errors)
    assert re.search(
        r"head adaptive-softmax.pointer.ngram, \d,\d{3} parameters; 2 epochs\. --budget", errors
    )
    assert "caf\\xe9" in done.stdout.decode("ascii")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert config["corpus"] == "caf" and config["batch"]["batch_size"] == 4
    # Where no option says otherwise, the size of the text decides.
    assert config["head"]["kind"] == RECOMMENDED and config["valid_batch_size"] == 2


@pytest.mark.parametrize("option", [[], ["--corpus"]])
def test_a_text_that_was_prepared_before_is_taken_as_it_was(option, highrank, trained, tmp_path):
    text = tmp_path / f"letters-{len(option)}.txt"
    text.write_text((trained / "tale.txt").read_text())
    assert highrank("data", "prepare", text, "--tokenizer", "characters")[0] == 0
    rest = (*TINY, "--train.epochs", "1", "--json", "--out", tmp_path / "run")
    code, printed, errors = highrank("train", *option, text, *rest)
    assert code == 0, errors
    assert json.loads((tmp_path / "run" / "config.json").read_text())["corpus"] == text.stem
    assert json.loads(printed)["test"]["perplexity"] < 20


def test_a_signal_saves_and_prints_how_to_resume(train, trained, tmp_path, child):
    long = ["--corpus", "tale", *TINY, "--train.epochs", "9999", "--out", tmp_path / "long"]
    environment = os.environ | {"HIGHRANK_CACHE": str(trained / "cache")}
    process = child("-m", "highrank", "train", *long, env=environment)
    log = tmp_path / "long" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors
    resume = ["--resume", str(tmp_path / "long"), "--threads", "1"]
    last = errors.splitlines()[-1]
    assert last == f"Saved. Resume with: highrank train {' '.join(resume)}"
    lines = len(log.read_text().splitlines())
    code, printed, _ = train(*resume, "--budget", "1s")
    assert code == 0 and "out of time" in printed
    assert len(log.read_text().splitlines()) > lines


def test_the_test_can_be_left_out_and_made_up_for(train, tmp_path):
    run = ["--corpus", "tale", *TINY, "--train.epochs", "1", "--out", tmp_path / "run", "--json"]
    done = json.loads(train(*run, "--no-test")[1])
    assert done["test"] is None and done["valid"]["perplexity"] > 1
    again = ["--resume", tmp_path / "run", "--threads", "1", "--test-batch-size", "4", "--json"]
    done = json.loads(train(*again)[1])
    assert done["test"]["perplexity"] > 1 and done["test_batch_size"] == 4
    end = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["test_batch_size"]) == ("end", 4)


def test_a_budget_that_is_too_short_for_the_test_leaves_it_out(train, tmp_path):
    short = ["--corpus", "tale", *TINY, "--budget", "0.000001s", "--out", tmp_path / "short"]
    code, printed, errors = train(*short)
    assert code == 0 and "is left out: `highrank evaluate`" in errors
    assert "valid perplexity" in printed and "test  perplexity" not in printed


def test_a_budget_chooses_sizes_or_says_why_not(train, tmp_path, monkeypatch):
    budget = ["--corpus", "tale", "--budget", "0.2s", "--no-test", "--valid-batch-size", "2"]
    code, _, errors = train(*budget, "--threads", "1", "--out", tmp_path / "sized")
    assert code == 0 and "Sizes for 0.17 s of training: LSTM 64-48, E = 32" in " ".join(
        errors.split()
    )
    config = json.loads((tmp_path / "sized" / "config.json").read_text())
    assert config["model"]["options"]["hidden_sizes"] == [64, 48]
    assert config["model"]["embedding_size"] == 32
    other = ("--model.kind", "gated-cnn", "--out", tmp_path / "cnn")
    code, _, errors = train(*budget, "--threads", "1", *other)
    assert code == 0 and "the rule is for awd-lstm, not for gated-cnn" in " ".join(errors.split())
    monkeypatch.setattr("highrank.cli.processes.launch", lambda *_: None)
    code, _, errors = train(*budget, "--processes", "2", "--out", tmp_path / "two")
    assert code == 0 and "the speed of one process, not of 2" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "must be the path of a text or a preset of `highrank presets`, got"),
        (["penn-treebank"], "got 'penn-treebank': did you mean --corpus penn-treebank?"),
        (["cache"], "a folder of text must have files that end in .txt, got none in cache"),
        (["tiny"], "tiny is a run: resume it"),
        (["tale.txt", "--resume", "any"], "a run must be a folder"),
        (["tale.txt", "--corpus", "tale"], "--corpus must come without a text, got tale.txt"),
        (["ptb-mos"], "highrank data prepare penn-treebank"),
        (["tale.txt", "--budget", "5"], "--budget must have a unit, such as 5m or 300s, got 5"),
        (["tale.txt", "--device", "cuda"], "device must be one that torch has here, got cuda ("),
        (["--budget", "soon"], "a duration must be like 90s, 20m or 1.5h, got 'soon'"),
        (["--corpus", "tale", "--head.kind", "softmax"], "for a tied softmax, got 192 and 64"),
        # This one once ended the process itself.
        (["--corpus", "tale", "--threads", "100000"], "threads must be between 1 and"),
        (["--corpus", "tale", "--train.epochs", "0"], "train.epochs must be at least 1, got 0"),
        (["--corpus", "tale", "--test-batch-size", "0"], "test-batch-size must be between 1 and"),
        (
            ["small-mos", "--corpus", "tale", "--head.num-components", "100000"],
            "head.num-components must be at most 1,024, got 100000",
        ),
        (["--corpus", "tale", "--model.embedding-size", "9999999999"], "must be at most"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_run_behind(arguments, message, train, trained):
    before = {path.name for path in trained.rglob("*")}
    code, _, errors = train(*arguments)
    assert code == 2
    assert message in errors.splitlines()[-1] and "Traceback" not in errors
    assert {path.name for path in trained.rglob("*")} == before
