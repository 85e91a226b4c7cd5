"""Draw tokens from log-probabilities: temperature, top-k, top-p (nucleus, Holtzman et al. 2020)."""

import torch
from torch import Tensor


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")


def tempered(
    log_p: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """log p / temperature, renormalised, then cut to the likeliest tokens and renormalised.

    Temperature 0 puts everything on the likeliest token. The top-p set is the smallest set of
    likeliest tokens whose probability reaches `top_p`; it is never empty. If both cuts are given,
    top-k goes first.

    Args:
        log_p: (..., V).
    """
    # Below the smallest normal number a quotient may be 0 / 0.
    if temperature < torch.finfo(log_p.dtype).tiny:
        best = log_p.argmax(-1, keepdim=True)
        return torch.full_like(log_p, -torch.inf).scatter_(-1, best, 0.0)
    # Relative to the likeliest token, which then stays finite at any temperature.
    log_p = ((log_p - log_p.amax(-1, keepdim=True)) / temperature).log_softmax(-1)
    if top_k is not None and top_k < log_p.shape[-1]:
        best = log_p.topk(top_k, -1).indices
        kept = torch.full_like(log_p, -torch.inf).scatter_(-1, best, log_p.gather(-1, best))
        log_p = kept.log_softmax(-1)
    if top_p is not None and top_p < 1:
        descending, order = log_p.sort(-1, descending=True)
        # Cut a token if those before it reach top_p already; before the first there is nothing.
        least = max(top_p, torch.finfo(log_p.dtype).tiny)
        before = descending.exp().cumsum(-1) - descending.exp()
        cut = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= least)
        log_p = log_p.masked_fill(cut, -torch.inf).log_softmax(-1)
    return log_p


def draw(log_p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index (N,) from each row of log-probabilities (N, V)."""
    return torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
