"""`highrank train --processes N` and torchrun: one run, one voice, whatever happens to a worker."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from highrank.cli import processes
from highrank.training import world
from highrank.training.world import World

TINY = (
    *("--corpus", "tale", "--model.embedding-size", "8", "--model.hidden-sizes", "10", "8"),
    *("--batch.batch-size", "4"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def start(trained, child):
    """Starts `highrank train` of a tiny model with these options."""
    environment = os.environ | {"HIGHRANK_CACHE": str(trained / "cache")}

    def run(*options, launcher=(), **more):
        command = (*launcher, "-m", "highrank", "train", *TINY, *options)
        return child(*command, env=environment, stdout=subprocess.PIPE, **more)

    return run


def lines_of(log, least, seconds=90):
    """Wait until a run's log has so many lines."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= least:
            return
        time.sleep(0.1)
    raise AssertionError(f"{log} has too few lines")


def workers_of(process):
    """Process numbers of a launcher's workers, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {}
    for child in children:
        found = re.search(rb"\0RANK=(\d+)", Path(f"/proc/{child}/environ").read_bytes())
        if found:
            ranks[int(found[1])] = int(child)
    return [ranks[rank] for rank in sorted(ranks)]


def test_two_processes_print_one_result(start, tmp_path):
    process = start("--processes", "2", "--train.epochs", "1", "--out", tmp_path / "run", "--json")
    printed, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    result = json.loads(printed)
    assert result["reason"] == "finished" and result["test"]["perplexity"] > 1
    assert errors.count("Run: ") == 1 and "Traceback" not in errors
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "end"


def test_what_cannot_be_shared_is_refused_before_a_worker_starts(highrank, tmp_path):
    train = ("train", *TINY, "--out", tmp_path / "run")
    for options, message in {
        ("--processes", "3"): "batch.batch-size must be a multiple of the 3 processes, got 4",
        ("--processes", "0"): "processes must be at least 1, got 0",
        ("--shard", "full"): "--shard full must come with several processes, got one",
        ("--processes", "2", "--shard", "vocabulary"): (
            "--shard vocabulary: head must be a mixture of softmaxes of logits, got "
        ),
    }.items():
        code, _, errors = highrank(*train, *options)
        assert code == 2 and message in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_once(number, start, tmp_path):
    run = tmp_path / "run"
    process = start("--processes", "2", "--train.epochs", "9999", "--out", run)
    lines_of(run / "metrics.jsonl", 5)
    begin = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and time.monotonic() - begin < 30
    resume = f"Saved. Resume with: highrank train --resume {run} --processes 2"
    assert errors.splitlines()[-1] == resume and errors.count("Saved.") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_dies_ends_the_run_with_one_sentence(rank, start, tmp_path):
    run = tmp_path / "run"
    process = start("--processes", "2", "--train.epochs", "9999", "--out", run)
    lines_of(run / "metrics.jsonl", 5)
    os.kill(workers_of(process)[rank], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors
    assert errors.splitlines()[-1] == (
        f"highrank: process {rank} of 2 was ended by SIGKILL. The last checkpoint is "
        f"{run / 'trainer.pt'}. Resume with: highrank train --resume {run} --processes 2"
    )


def test_a_process_that_dies_before_the_run_begins_is_told_in_one_sentence(highrank, monkeypatch):
    """As when the first one is killed while it prepares a text for torchrun's others."""

    class Lost(World):
        def first(self, work):
            raise RuntimeError("gloo: Connection closed by peer")

    monkeypatch.setattr(world, "joined", lambda device: nullcontext((Lost(1, 2), device)))
    monkeypatch.setattr(processes, "follow_launcher", lambda: None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of torchrun")
    monkeypatch.setenv("RANK", "1")
    code, _, errors = highrank("train", *TINY)
    start = "The run has not begun: start it again."
    assert (code, errors) == (1, f"highrank: another process has ended. {start}\n")


@pytest.mark.slow
def test_torchrun_restarts_a_run_where_it_was(start, tmp_path):
    run, launcher = tmp_path / "run", (*TORCHRUN, "--max-restarts", "1")
    process = start("--train.epochs", "5", "--out", run, "--json", launcher=launcher)
    lines_of(run / "metrics.jsonl", 10)
    os.kill(workers_of(process)[1], signal.SIGKILL)
    printed, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    assert json.loads(printed)["reason"] == "finished"
    told = [line for line in errors.splitlines() if "another process has ended" in line]
    assert len(told) == 1
    assert f"torchrun --nproc-per-node 2 -m highrank train --resume {run}" in told[0]


@pytest.mark.slow
def test_torchrun_hands_a_signal_on_and_the_run_is_saved_in_time(start, tmp_path):
    run = tmp_path / "run"
    process = start("--train.epochs", "9999", "--out", run, launcher=TORCHRUN)
    lines_of(run / "metrics.jsonl", 5)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode and time.monotonic() - begin < 30
    resume = f"torchrun --nproc-per-node 2 -m highrank train --resume {run}"
    assert errors.count(f"Saved. Resume with: {resume}") == 1


@pytest.mark.slow
def test_a_restart_must_find_the_run(start):
    process = start(launcher=(*TORCHRUN, "--max-restarts", "1"))
    _, errors = process.communicate(timeout=110)
    assert process.returncode and "--out must be given with torchrun's --max-restarts" in errors


@pytest.mark.slow
def test_workers_save_and_end_with_their_launcher(start, tmp_path):
    run = tmp_path / "run"
    process = start("--processes", "2", "--train.epochs", "9999", "--out", run)
    lines_of(run / "metrics.jsonl", 5)
    process.kill()
    # The pipe is closed when the last worker has ended.
    _, errors = process.communicate(timeout=60)
    assert errors.count("Saved. Resume with: highrank train") == 1
