"""Three published conventions for η, ε and λ of dynamic evaluation, and the exact way between them.

They differ in what σ and σ̄ are. With B batches and n parameter tensors:

    paper     σ = √(Σ g² / B)   σ̄ = mean over tensors of mean σ   Krause et al. (2018)
    original  σ = √(Σ g²)       σ̄ = sum over tensors of mean σ    their first code, and Yang et al.
    ms        σ = √(Σ g² / B)   σ̄ = sum over tensors of mean σ    --ms in the code of Yang et al.

So η and ε of "original" are √B times the paper's; λ of both others is n times the paper's. The
conversion is exact with the clipped decay, too: what is clipped is the product λ·σ/σ̄.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from highrank.evaluation.dynamic import DynamicSettings


class Convention(NamedTuple):
    sums_batches: bool
    """Whether σ² is a sum over batches, not a mean."""
    sums_tensors: bool
    """Whether σ̄ is a sum over tensors, not a mean."""


CONVENTIONS = {
    "paper": Convention(sums_batches=False, sums_tensors=False),
    "original": Convention(sums_batches=True, sums_tensors=True),
    "ms": Convention(sums_batches=False, sums_tensors=True),
}


def converted(
    settings: DynamicSettings,
    source: str,
    target: str = "paper",
    *,
    num_batches: int,
    num_tensors: int,
) -> DynamicSettings:
    """The settings with lr, epsilon and decay in another convention.

    Args:
        source: the convention in which they are, a key of `CONVENTIONS`.
        target: the one in which they are wanted.
        num_batches: B, of the gradient statistics.
        num_tensors: n, of the gradient statistics; a tied parameter counts once.
    """
    for name in (source, target):
        if name not in CONVENTIONS:
            raise ValueError(f"a convention must be one of {', '.join(CONVENTIONS)}, got {name!r}")
    if settings.rule != "rms":
        raise ValueError(f"settings must be of the rule rms to be converted, got {settings.rule}")
    given, wanted = CONVENTIONS[source], CONVENTIONS[target]
    rms = math.sqrt(num_batches) ** (wanted.sums_batches - given.sums_batches)
    mean = num_tensors ** (wanted.sums_tensors - given.sums_tensors)
    return replace(
        settings,
        lr=settings.lr * rms,
        epsilon=settings.epsilon * rms,
        decay=settings.decay * mean,
    )
