"""The complete head that CONTRIBUTING.md shows works as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch.autograd import gradcheck

ROOT = Path(__file__).parents[1]
CODE = re.search(
    r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL
).group(1)
# The tests that take every head of the list.
TESTS = ("heads/test_contract.py", "heads/test_module.py", "invariants/test_commands.py")


def test_the_head_in_contributing_is_a_head():
    names = {}
    exec(compile(CODE, "CONTRIBUTING.md", "exec"), names)
    head = names["ScaledSoftmax"](6, 11, 4, scale=2.0).double()
    hidden, target = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    torch.testing.assert_close(head(hidden).exp().sum(-1), torch.ones(5, dtype=torch.float64))
    assert gradcheck(lambda h: head(h, target).loss, hidden.requires_grad_())
    loss = -head.log_prob(hidden)[torch.arange(5), target].mean()
    torch.testing.assert_close(head(hidden, target).loss, loss)
    assert head.rank_bound == 6


def test_it_passes_the_tests_of_every_head_once_it_is_in_the_list(tmp_path):
    (tmp_path / "scaled.py").write_text(CODE)
    line = "from highrank.heads import HEADS\nHEADS['scaled'] = 'scaled:ScaledSoftmax'\n"
    (tmp_path / "with_scaled.py").write_text(line)
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "with_scaled", "-k", "scaled", *tests]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20
