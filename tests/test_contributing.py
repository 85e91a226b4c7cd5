"""The complete head that CONTRIBUTING.md shows works as it says."""

import re
from pathlib import Path

import torch
from torch.autograd import gradcheck

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def test_the_head_in_contributing_is_a_head():
    code = re.search(r"```python\n(.*?)```", TEXT, flags=re.DOTALL).group(1)
    names = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    head = names["ScaledSoftmax"](6, 11, 4, temperature=2.0).double()
    hidden, target = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    torch.testing.assert_close(head(hidden).exp().sum(-1), torch.ones(5, dtype=torch.float64))
    assert gradcheck(lambda h: head(h, target).loss, hidden.requires_grad_())
    loss = -head.log_prob(hidden)[torch.arange(5), target].mean()
    torch.testing.assert_close(head(hidden, target).loss, loss)
    assert head.rank_bound == 6
