"""A small share of the random cases of `fuzz_divergence.py`, and one with a large vocabulary."""

import fuzz_divergence
import pytest
import torch

from highrank import MixtureOfSoftmaxes, Softmax, head_kl
from highrank.ops.divergence import DIRECTIONS


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_divergences_of_random_heads_are_those_of_tables(start, monkeypatch):
    monkeypatch.setattr(fuzz_divergence.sides, "BLOCK_NUMBERS", 2**18)
    for number in range(start, start + 20):
        drawn, dtype, error = fuzz_divergence.case(number)
        assert error <= fuzz_divergence.TOLERANCES[dtype], (number, drawn)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("N, V", [(24, 5000), pytest.param(512, 262_144, marks=pytest.mark.slow)])
def test_a_large_vocabulary_has_the_divergence_of_tables(N, V, direction):
    """In float64, tables of a few tokens at a time."""
    torch.manual_seed(0)
    student, teacher = Softmax(8, V).double(), MixtureOfSoftmaxes(8, V, 2, 8).double()
    for parameter in (*student.parameters(), *teacher.parameters()):
        torch.nn.init.normal_(parameter)
    hidden, other = torch.randn(2, N, 8, dtype=torch.float64)
    leaves = [hidden.requires_grad_(), *student.parameters()]
    loss, want = head_kl(student, hidden, teacher, other, direction, reduction="sum"), 0.0
    found = [loss, *torch.autograd.grad(loss, leaves)]
    for rows in torch.arange(N).split(16):
        tables = student(hidden[rows]), teacher(other[rows]).detach()
        tables = [(log_p, torch.arange(V)) for log_p in tables]
        part = fuzz_divergence.reference(*tables, direction, 1.0).sum()
        part.backward()
        want += part.item()
    for a, b in zip(
        found, [torch.tensor(want, dtype=torch.float64), *(x.grad for x in leaves)], strict=True
    ):
        assert (a - b).abs().max() <= 1e-9 * b.abs().max()
