"""Divergences of tables of log-probabilities."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from highrank.ops.divergence import DIRECTIONS, divergence


@pytest.fixture
def tables():
    return torch.randn(2, 5, 9, dtype=torch.float64).mul(3).log_softmax(-1)


def tempered(log_p, temperature):
    powers = np.exp(log_p.numpy()) ** (1 / temperature)
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 5.0])
def test_they_are_those_of_scipy_for_powers_of_the_probabilities(tables, temperature):
    student, teacher = (tempered(table, temperature) for table in tables)
    want = {
        "forward": rel_entr(teacher, student).sum(-1),
        "reverse": rel_entr(student, teacher).sum(-1),
        "js": jensenshannon(student, teacher, axis=-1) ** 2,
    }
    for direction in DIRECTIONS:
        found = divergence(*tables, direction, temperature)
        np.testing.assert_allclose(found.numpy(), want[direction], rtol=1e-12)


def test_a_softmax_at_a_temperature_is_one_of_divided_logits(tables):
    logits = torch.randn(2, 5, 9, dtype=torch.float64)
    want = divergence(*(logits / 3).log_softmax(-1))
    torch.testing.assert_close(divergence(*logits.log_softmax(-1), temperature=3.0), want)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients_are_those_of_differences(tables, direction):
    tables = tables.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: divergence(*x, direction, 1.7), [tables])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_token_that_both_rule_out_counts_for_nothing(tables, direction):
    ruled_out = torch.zeros(9).bool().index_fill(0, torch.tensor([2, 7]), True)
    cut = tables.masked_fill(ruled_out, -torch.inf).log_softmax(-1).requires_grad_()
    short = cut.detach()[..., ~ruled_out].requires_grad_()
    found, want = divergence(*cut, direction), divergence(*short, direction)
    torch.testing.assert_close(found, want)
    (gradient,) = torch.autograd.grad(found.sum(), [cut])
    (short_gradient,) = torch.autograd.grad(want.sum(), [short])
    torch.testing.assert_close(gradient[..., ~ruled_out], short_gradient)
    assert not gradient[..., ruled_out].any()


def test_a_token_that_one_rules_out_is_infinite_but_for_js():
    some = torch.tensor([0.5, 0.5]).log().requires_grad_()
    one = torch.tensor([1.0, 0.0]).log()
    found = [divergence(one, some, direction).item() for direction in DIRECTIONS]
    assert found[0] == math.inf and found[1] == pytest.approx(math.log(2))
    assert 0 < found[2] < math.log(2)
    infinite = divergence(some, one, "reverse")
    (gradient,) = torch.autograd.grad(infinite, [some])
    assert infinite == math.inf and not gradient.any()
