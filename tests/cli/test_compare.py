"""`highrank compare`: what may be asked, the plan, a report in files, two jobs, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highrank.studies.compare import plan, presets

SMALL = "--heads mos:2 --embedding 4 --hidden-sizes 12 8 --equal context tokens"


@pytest.fixture
def quick(monkeypatch):
    """A comparison of a few steps, planned for a machine of known speed."""
    known = plan.Speed(cpu=1e-3, wall=1e-3, alone=1e-3, valid=0.01, test=0.01, analysis=0.01)
    monkeypatch.setattr(plan, "FEWEST_STEPS", 3)
    monkeypatch.setattr(plan, "measure_speed", lambda *_, **__: known)


@pytest.mark.usefixtures("quick")
def test_a_text_is_compared_and_the_report_is_written(highrank, trained, tmp_path):
    command = f"compare tale.txt {SMALL} --seeds 2 --budget 6s --jobs 2 --runs {tmp_path} --json"
    code, out, errors = highrank(*command.split())
    assert code == 0, errors
    assert "The plan" in errors and "2 variants × 2 seeds" in errors
    folder = tmp_path / "compare-tale-1"
    assert {"plan.json", "report.html", "report.json", "report.csv", "report.png"} <= {
        path.name for path in folder.iterdir()
    }
    result = json.loads(out)
    assert result == json.loads((folder / "report.json").read_text())
    assert result["is_complete"] and len(result["runs"]) == 4
    code, out, errors = highrank("compare", "--resume", folder)
    assert code == 0 and "Equal tokens" in out and "The page with pictures: file://" in out
    assert len(list(folder.glob("*-seed*"))) == 4
    # The page still says what made it.
    assert "6s</span>" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("quick")
def test_a_plan_alone_makes_no_folder(highrank, tmp_path):
    command = f"compare tale {SMALL} --budget 9s --plan --runs {tmp_path}"
    code, out, errors = highrank(*command.split())
    assert code == 0 and "MoS, K = 2" in errors and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare sense", "got 'sense': did you mean senses?"),
        (
            "compare tale --heads mso",
            "untied-softmax, repeat or kinds: head.kind must be one of softmax",
        ),
        ("compare tale --equal context", "equal must have time or tokens, got context"),
        ("compare tale --resume runs", "--resume must come without a corpus, got tale"),
        ("compare --resume runs", "must be a folder that `highrank compare` made, got runs"),
    ],
)
def test_mistakes_are_named(highrank, arguments, message):
    code, _, errors = highrank(*arguments.split())
    assert code == 2 and message in errors


@pytest.mark.usefixtures("quick")
def test_a_budget_that_is_too_small_ends_before_anything_is_made(highrank, monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "FEWEST_STEPS", 10**6)
    command = f"compare tale {SMALL} --budget 5s --runs {tmp_path}"
    code, _, errors = highrank(*command.split())
    assert code == 2 and "the budget must be at least" in errors and not list(tmp_path.iterdir())
    # The command that is printed fits.
    monkeypatch.setattr(plan, "FEWEST_STEPS", 3_000)
    _, _, errors = highrank(*command.split())
    fitting = re.search(r"This fits: highrank (.*)", errors)[1]
    assert "5s" not in fitting and fitting.count("--budget") == 1
    code, _, errors = highrank(*fitting.split(), "--plan")
    assert code == 0 and "The plan" in errors


@pytest.mark.usefixtures("quick")
def test_both_default_plans_are_made_before_anything_is_trained(highrank, monkeypatch, tmp_path):
    long, short = (presets.Comparison(corpus="tale", budget=budget) for budget in ("1h", "1s"))
    monkeypatch.setattr(presets, "DEFAULTS", (long, short))
    code, _, errors = highrank("compare", *SMALL.split(), "--runs", tmp_path)
    assert code == 2 and "The plan" in errors and "the budget must be at least" in errors
    assert not list(tmp_path.iterdir())


def workers_of(pid):
    """Processes that train for a command."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_worker", "number", "code"),
    [
        (False, signal.SIGINT, 128 + signal.SIGINT),
        (False, signal.SIGTERM, 128 + signal.SIGTERM),
        (False, signal.SIGKILL, -signal.SIGKILL),
        (True, signal.SIGKILL, 2),
    ],
)
def test_two_jobs_that_are_killed_leave_no_process_and_resume(
    trained, tmp_path, is_worker, number, code
):
    environment = os.environ | {"HIGHRANK_CACHE": str(trained / "cache")}
    start = [sys.executable, "-m", "highrank", "compare"]
    command = f"tale {SMALL} --seeds 2 --budget 30s --jobs 2 --runs {tmp_path}"
    log = tmp_path / "errors"
    with log.open("w") as errors:
        process = subprocess.Popen([*start, *command.split()], env=environment, stderr=errors)
    deadline = time.monotonic() + 200
    while len(list(tmp_path.glob("*/*/model.safetensors"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()
        time.sleep(0.2)
    workers = workers_of(process.pid)
    os.kill(workers[0] if is_worker else process.pid, number)
    assert process.wait(100) == code
    assert ("highrank: A process that trained ended" in log.read_text()) == is_worker
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    folder = tmp_path / "compare-tale-1"
    if number in (signal.SIGINT, signal.SIGTERM):
        assert not json.loads((folder / "report.json").read_text())["is_complete"]
    resume = [*start, "--resume", folder, "--json"]
    done = subprocess.run(resume, env=environment, capture_output=True, check=True)
    result = json.loads(done.stdout)
    assert result["is_complete"] and {run["state"] for run in result["runs"]} == {"finished"}
