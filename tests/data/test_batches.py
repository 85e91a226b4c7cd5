"""Lengths of windows against the rule of the original code."""

import torch

from highrank.data.batches import draw_bptt


def lengths(bptt, n=4000, std=5.0, max_delta=40):
    rule = {"std": std, "max_delta": max_delta, "half_probability": 0.05}
    generator = torch.Generator().manual_seed(1)
    return torch.tensor([draw_bptt(bptt, **rule, generator=generator) for _ in range(n)])


def test_windows_are_around_the_mean_or_half_of_it():
    found = lengths(70)
    assert found.min() >= 5 and found.max() <= 110
    short = (found < 50).float().mean().item()
    assert 0.035 < short < 0.065
    # int() cuts off, half a token on average.
    assert abs(found[found >= 50].float().mean().item() - 69.5) < 0.4
    assert abs(found[found >= 50].float().std().item() - 5.0) < 0.3


def test_windows_are_never_shorter_than_five_nor_longer_than_allowed():
    found = lengths(12, std=30.0, max_delta=4)
    assert found.min() == 5 and found.max() == 16


def test_without_deviation_all_windows_are_equal():
    assert set(lengths(35, 50, std=0).tolist()) == {35}
