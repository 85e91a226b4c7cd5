"""Activation penalties of AWD-LSTM: Merity, McCann and Socher (2017), arXiv 1708.01009."""

from torch import Tensor


def activation_penalties(hidden: Tensor, raw: Tensor, alpha: float, beta: float) -> Tensor:
    """α · mean(hidden²) + β · mean((raw[t + 1] - raw[t])²); no term crosses a window's boundary.

    Args:
        hidden: (T, B, D), the last layer after dropout.
        raw: (T, B, D), before it.
    """
    penalty = alpha * hidden.float().square().mean()
    if beta and len(raw) > 1:
        penalty = penalty + beta * (raw[1:] - raw[:-1]).float().square().mean()
    return penalty
