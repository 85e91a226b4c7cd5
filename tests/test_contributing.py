"""The complete head and the complete backbone that CONTRIBUTING.md shows work as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
BACKBONE, HEAD = BLOCKS
# What is printed, the line that lists it, the tests that then take it, and how many at least.
LISTED = {
    "scaled": (
        HEAD,
        "from highrank.heads import HEADS\nHEADS['scaled'] = 'scaled:ScaledSoftmax'\n",
        ("heads/test_contract.py", "heads/test_module.py", "invariants/test_commands.py"),
        20,
    ),
    "gru": (
        BACKBONE,
        "from highrank.models import BACKBONES\nBACKBONES['gru'] = 'gru:GRU'\n",
        ("models/test_contract.py", "invariants/test_commands.py"),
        6,
    ),
}


def test_the_head_in_contributing_is_a_head():
    names = {}
    exec(compile(HEAD, "CONTRIBUTING.md", "exec"), names)
    head = names["ScaledSoftmax"](6, 11, 4, scale=2.0).double()
    hidden, target = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    torch.testing.assert_close(head(hidden).exp().sum(-1), torch.ones(5, dtype=torch.float64))
    assert gradcheck(lambda h: head(h, target).loss, hidden.requires_grad_())
    loss = -head.log_prob(hidden)[torch.arange(5), target].mean()
    torch.testing.assert_close(head(hidden, target).loss, loss)
    assert head.rank_bound == 6


@pytest.mark.parametrize("name", LISTED)
def test_it_passes_the_tests_of_its_kind_once_it_is_in_the_list(name, tmp_path):
    code, line, tests, least = LISTED[name]
    (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / f"with_{name}.py").write_text(line)
    paths = [str(ROOT / "tests" / test) for test in tests]
    command = [sys.executable, "-m", "pytest", "-p", f"with_{name}", "-k", name, *paths]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least
