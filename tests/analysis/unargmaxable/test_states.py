"""Words that lead somewhere, but not in the states that there are."""

import math

import pytest
import torch
import torch.nn.functional as F

from highrank.analysis.unargmaxable.states import Ball, Box, behind_layer_norm


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_low_bias_forbids_a_word_in_a_bounded_set_only(verdicts):
    weight, bias = torch.eye(3), torch.tensor([0.0, 0.0, -5.0])
    assert verdicts(weight, bias) == ["reachable"] * 3
    assert verdicts(weight, bias, Box(-1, 1)) == ["reachable", "reachable", "unreachable"]
    # The best state of a ball, (-1, -1, 2) turned to its surface, leads by √1.5 · radius − 5.
    assert verdicts(weight, bias, Ball(4.1)) == ["reachable"] * 3
    assert verdicts(weight, bias, Ball(4.0)) == ["reachable", "reachable", "unreachable"]


@pytest.mark.parametrize("states", [Box(-1, 1), Box(torch.tensor([-1.0, 0.0]), 2.0), Ball(1.0)])
def test_states_on_a_grid_find_no_word_that_is_called_unreachable(states, reachable):
    weight, bias = gaussian(80, 2), gaussian(80, seed=1) / 2
    grid = torch.cartesian_prod(*[torch.linspace(-2, 2, 801, dtype=torch.float64)] * 2)
    grid = grid[states.contains(grid)]
    winners = set((grid @ weight.T + bias).argmax(dim=1).tolist())
    found = reachable(weight, bias, states)
    assert winners <= found
    assert len(found - winners) <= 2
    assert found < reachable(weight, bias)


def test_what_a_layer_norm_makes_most_likely_is_reachable(reachable):
    # Rare words are short, and all lean one way.
    length = 0.1 + torch.arange(1, 61, dtype=torch.float64).rsqrt()
    weight = gaussian(60, 4) * length[:, None] + gaussian(4, seed=1)
    bias = -torch.arange(1, 61, dtype=torch.float64).log() / 3
    gain, shift = gaussian(4, seed=2), gaussian(4, seed=3)
    normed = F.layer_norm(gaussian(20_000, 4, seed=4), (4,))
    matrix, offset, ball = behind_layer_norm(weight, bias, gain=gain, shift=shift)
    logits = (normed * gain + shift) @ weight.T + bias
    torch.testing.assert_close(normed @ matrix.T + offset, logits)
    found = reachable(matrix, offset, ball)
    assert set(logits.argmax(dim=1).tolist()) <= found
    assert len(found) < 60


def test_a_layer_norm_cannot_tell_vectors_that_differ_by_a_constant(verdicts):
    weight = torch.tensor([[1.0, 0.0, -1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
    matrix, offset, ball = behind_layer_norm(weight)
    assert verdicts(matrix, offset, ball) == ["tied", "tied", "reachable"]
    matrix, offset, ball = behind_layer_norm(weight, is_centred=False)
    assert verdicts(matrix, offset, ball) == ["reachable"] * 3


@pytest.mark.parametrize("make", [lambda: Box(1, -1), lambda: Box(0, math.inf), lambda: Ball(0.0)])
def test_sets_without_states_or_bounds_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
