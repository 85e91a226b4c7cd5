"""Tokens that lead somewhere, but not in the states that are possible."""

import math

import pytest
import torch

from highrank.analysis.unargmaxable.problem import Box


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_low_bias_forbids_a_token_in_a_bounded_set_only(verdicts):
    weight, bias = torch.eye(3), torch.tensor([0.0, 0.0, -5.0])
    assert verdicts(weight, bias) == ["argmaxable"] * 3
    # The best state of a box, (-1, -1, 1) times its bound, leads by 2 · bound − 5.
    assert verdicts(weight, bias, Box(2.6)) == ["argmaxable"] * 3
    for bound in (1.0, 2.4):
        found = verdicts(weight, bias, Box(bound))
        assert found == ["argmaxable", "argmaxable", "unargmaxable"]


@pytest.mark.parametrize("states", [Box(1.0), Box(0.5)])
def test_states_on_a_grid_find_no_token_that_is_called_unargmaxable(states, argmaxable):
    weight, bias = gaussian(80, 2), gaussian(80, seed=1) / 2
    grid = torch.cartesian_prod(*[torch.linspace(-2, 2, 801, dtype=torch.float64)] * 2)
    grid = grid[states.contains(grid)]
    winners = set((grid @ weight.T + bias).argmax(dim=1).tolist())
    found = argmaxable(weight, bias, states)
    assert winners <= found
    assert len(found - winners) <= 2
    assert found < argmaxable(weight, bias)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_boxes_without_states_or_bounds_are_refused(bound):
    with pytest.raises(ValueError, match="bound must be positive and finite, got"):
        Box(bound)
