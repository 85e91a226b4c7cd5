"""The examples run as their first lines say; those for torchrun with two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


# Half a minute of a C++ compiler; the heads' own tests compile, too.
SLOW = ("compile",)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in EXAMPLES
    ],
)
def test_an_example_runs(example, tmp_path):
    needs_processes = f"torchrun --nproc-per-node 2 examples/{example.name}" in example.read_text()
    command = [sys.executable, *(TORCHRUN if needs_processes else ()), str(example)]
    # What torch compiles for one CPU must not be taken for another.
    own = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    environment = os.environ | own
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    losses = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("step ")]
    assert not losses or float(losses[-1]) < float(losses[0]), done.stdout
