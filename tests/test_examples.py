"""The examples run as their first lines say; those for torchrun with two processes."""

import runpy
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
def test_an_example_runs(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # What torch compiles for one CPU must not be taken for another.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    if f"torchrun --nproc-per-node 2 examples/{example.name}" in example.read_text():
        command = [sys.executable, *TORCHRUN, str(example)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        # The start of a process with torch and transformers is longer than most examples.
        monkeypatch.setattr(sys, "argv", [str(example)])
        runpy.run_path(str(example), run_name="__main__")
        printed = capsys.readouterr().out
    assert printed.strip()
    losses = [line.split()[-1] for line in printed.splitlines() if line.startswith("step ")]
    assert not losses or float(losses[-1]) < float(losses[0]), printed
