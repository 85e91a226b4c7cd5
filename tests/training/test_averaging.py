"""Averaging against torch's optimiser and plain means; the trigger against the original's line."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from highrank.training.averaging import Average
from highrank.training.schedule import is_non_monotonic


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0, 8.0])
def test_the_average_is_the_mean_of_the_iterates_and_a_power_weights_the_late_ones(power):
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    average, iterates = Average([p], power), []
    for _ in range(400):
        with torch.no_grad():
            p.add_(torch.randn(3, dtype=torch.float64))
        iterates.append(p.detach().clone())
        average.update([p])
    # Shamir and Zhang's weights are a rising factorial of the step: t (t + 1) … (t + γ - 1).
    steps = torch.arange(1, 401, dtype=torch.float64)
    weight = (torch.lgamma(steps + power) - torch.lgamma(steps)).softmax(0)
    want = (weight[:, None] * torch.stack(iterates)).sum(0)
    torch.testing.assert_close(average.values[0], want)
    assert weight[-int(400 / (power + 1)) :].sum() > 0.6


def test_iterates_are_those_of_torch_asgd_and_averages_differ_by_its_first_one():
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        sgd = torch.optim.SGD([ours], lr=0.1, weight_decay=0.01)
        asgd = torch.optim.ASGD([theirs], lr=0.1, lambd=0.0, t0=0, weight_decay=0.01)
        average, first = Average([ours]), None
        for step in range(1, 11):
            gradient = torch.randn(4)
            ours.grad, theirs.grad = gradient, gradient.clone()
            sgd.step()
            asgd.step()
            average.update([ours])
            first = ours.detach().clone() if step == 1 else first
            torch.testing.assert_close(ours, theirs)
        without_first = (10 * average.values[0] - first) / 9
        torch.testing.assert_close(asgd.state[theirs]["ax"], without_first)
    finally:
        torch.set_default_dtype(torch.float32)


@given(st.lists(st.floats(1, 9), max_size=12), st.floats(1, 9), st.integers(0, 6))
def test_the_trigger_compares_with_all_but_the_last_values(history, value, n):
    older = [v for age, v in enumerate(reversed(history), 1) if age > n]
    assert is_non_monotonic(history, value, n) == any(value > v for v in older)


def test_the_earliest_switch_is_after_epoch_seven():
    losses = [5.0, *[6.0] * 10]
    switched = [e for e in range(1, 9) if is_non_monotonic(losses[: e - 1], losses[e - 1], 5)]
    assert min(switched) == 7


@pytest.mark.parametrize("count", [0, 3])
def test_the_state_of_an_average_comes_back_and_goes_where_the_average_is(count):
    p = nn.Parameter(torch.randn(3))
    one, two = Average([p]), Average([p])
    for _ in range(count):
        one.update([nn.Parameter(torch.randn(3))])
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert two.count == count and torch.equal(one.values[0], two.values[0])
    two.values = [value.to("meta") for value in two.values]
    two.load_state_dict(one.state_dict())
    assert two.values[0].device.type == "meta"
