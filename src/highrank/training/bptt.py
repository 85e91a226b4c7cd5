"""Windows of random length over columns of text: Merity et al. (2018), section 5."""

import torch

from highrank.config import BatchConfig

SHORTEST = 5


def draw_window(config: BatchConfig, generator: torch.Generator) -> int:
    """A window's length: normal around the mean or, now and then, around half of it."""
    if config.window_deviation == 0:
        return config.window
    short = torch.rand((), generator=generator).item() < config.short_share
    mean = config.window / 2 if short else float(config.window)
    noise = config.window_deviation * torch.randn((), generator=generator).item()
    return min(max(SHORTEST, int(mean + noise)), config.window + config.window_extra)
