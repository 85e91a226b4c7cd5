"""Activation penalties against loops over elements."""

import torch

from highrank.training.penalties import activation_penalties


def test_penalties_are_means_over_all_elements():
    hidden, raw = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    want = 2.0 * sum(x * x for x in hidden.flatten().tolist()) / 60
    steps = (raw[1:] - raw[:-1]).flatten().tolist()
    want += 3.0 * sum(x * x for x in steps) / 48
    torch.testing.assert_close(
        activation_penalties(hidden, raw, 2.0, 3.0), torch.tensor(want), rtol=1e-5, atol=0
    )


def test_a_window_of_one_token_has_no_temporal_penalty():
    raw = torch.randn(1, 3, 4)
    torch.testing.assert_close(activation_penalties(raw, raw, 0.0, 1.0), torch.tensor(0.0))
