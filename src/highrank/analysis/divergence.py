"""The expected KL divergence between the predictions of two contexts, as the paper measures it.

Yang et al. (2018), arXiv 1711.03953, report it for Penn Treebank: 4.869 (softmax), 4.955 (MoC) and
5.400 (MoS) nats. T contexts, V tokens, n rows of a block, G groups of contexts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank.analysis.log_probs import LogProbs

# How far the probabilities of a context may be from one in all.
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Divergence:
    nats: float
    """Mean of KL(p(·|c) ‖ p(·|c')) over all ordered pairs of different contexts."""
    standard_error: float | None
    """Over contexts, by a jackknife that leaves out groups of neighbours; None for two contexts."""
    num_contexts: int
    num_groups: int


def expected_divergence(
    source: LogProbs,
    num_groups: int = 20,
    on_progress: Callable[[float, str], None] | None = None,
) -> Divergence:
    """The mean over contexts of Σ p log p, minus (mean p)·(mean log p), times T/(T-1).

    Exact, in one pass, with 2·G numbers for each token. The factor leaves out the T pairs of a
    context with itself, which are zero.

    Args:
        num_groups: G, of consecutive contexts that the jackknife leaves out together.
    """
    T = source.num_contexts
    if T < 2:
        raise ValueError(f"the source must have at least 2 contexts, got {T}")
    # A single context that remains has no pair.
    groups = min(num_groups, T if T > 2 else 1)
    if num_groups < 2:
        raise ValueError(f"num_groups must be at least 2, got {num_groups}")
    sums = _Sums(groups, source.vocab_size)
    row = 0
    for block in source.blocks():
        for start, end, group in _pieces(row, len(block), groups, T):
            sums.add(block[start - row : end - row].double().cpu(), group)
        row += len(block)
        if on_progress is not None:
            on_progress(row / T, f"{row:,} of {T:,} contexts")
    everything = sums.count.sum(), sums.inner.sum(), sums.prob.sum(0), sums.log_prob.sum(0)
    without = [
        _nats(*(whole - part[g] for whole, part in zip(everything, sums.tables, strict=True)))
        for g in range(groups)
        if groups > 1
    ]
    return Divergence(
        nats=_nats(*everything),
        standard_error=_jackknife_error(without),
        num_contexts=T,
        num_groups=groups,
    )


class _Sums:
    """Sums over each group of contexts, of which the divergence is made.

    log p is taken relative to a reference, that of the first context. It drops out of the
    divergence, and takes with it the digits that would cancel.
    """

    def __init__(self, num_groups: int, vocab_size: int) -> None:
        self.count = torch.zeros(num_groups, dtype=torch.float64)
        self.inner = torch.zeros(num_groups, dtype=torch.float64)
        self.prob = torch.zeros(num_groups, vocab_size, dtype=torch.float64)
        self.log_prob = torch.zeros(num_groups, vocab_size, dtype=torch.float64)
        self.reference: Tensor | None = None

    @property
    def tables(self) -> tuple[Tensor, ...]:
        return self.count, self.inner, self.prob, self.log_prob

    def add(self, log_prob: Tensor, group: int) -> None:
        """Rows (n, V) of one group."""
        if self.reference is None:
            self.reference = log_prob[0].clone()  # (V,)
        prob = log_prob.exp()  # (n, V)
        worst = (prob.sum(1) - 1).abs().max().item()
        if worst > TOLERANCE:
            raise ValueError(
                f"the probabilities of a context must sum to one within {TOLERANCE}, "
                f"got a sum that is off by {worst:.3g}"
            )
        relative = log_prob - self.reference  # (n, V)
        self.count[group] += len(prob)
        self.inner[group] += torch.dot(prob.flatten(), relative.flatten())
        self.prob[group] += prob.sum(0)
        self.log_prob[group] += relative.sum(0)


def _pieces(row: int, length: int, groups: int, total: int) -> list[tuple[int, int, int]]:
    """Start, end and group of the parts of rows row … row+length-1; groups differ by one row."""
    bounds = [total * g // groups for g in range(groups + 1)]
    cut = [(max(row, bounds[g]), min(row + length, bounds[g + 1]), g) for g in range(groups)]
    return [(start, end, g) for start, end, g in cut if start < end]


def _nats(count: Tensor, inner: Tensor, prob: Tensor, log_prob: Tensor) -> float:
    T = count.item()
    return (inner.item() / T - torch.dot(prob / T, log_prob / T).item()) * T / (T - 1)


def _jackknife_error(estimates: list[float]) -> float | None:
    """√((G-1)/G Σ (θ_g - mean)²), with θ_g the estimate without group g."""
    G = len(estimates)
    if G == 0:
        return None
    mean = math.fsum(estimates) / G
    return math.sqrt((G - 1) / G * math.fsum((theta - mean) ** 2 for theta in estimates))
