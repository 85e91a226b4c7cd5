"""Lengths of windows against the rule of the original code."""

import torch

from highrank.config import BatchConfig
from highrank.training.bptt import draw_window


def lengths(config, n=4000):
    generator = torch.Generator().manual_seed(1)
    return torch.tensor([draw_window(config, generator) for _ in range(n)])


def test_windows_are_around_the_mean_or_half_of_it():
    found = lengths(BatchConfig(window=70, window_extra=40))
    assert found.min() >= 5 and found.max() <= 110
    short = (found < 50).float().mean().item()
    assert 0.035 < short < 0.065
    # int() cuts off, half a token on average.
    assert abs(found[found >= 50].float().mean().item() - 69.5) < 0.4
    assert abs(found[found >= 50].float().std().item() - 5.0) < 0.3


def test_windows_are_never_shorter_than_five_nor_longer_than_allowed():
    found = lengths(BatchConfig(window=12, window_deviation=30.0, window_extra=4))
    assert found.min() == 5 and found.max() == 16


def test_without_deviation_all_windows_are_equal():
    assert set(lengths(BatchConfig(window=35, window_deviation=0), 50).tolist()) == {35}
