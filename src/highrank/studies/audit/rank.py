"""The rank of an output layer's log-probabilities, and what the same head has with random weights.

Where random weights have as much of something, it says nothing about what was learned: they are the
baseline of ranks, divergence and mixture. T contexts, V tokens, D hidden size.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.analysis.components import component_report
from highrank.analysis.divergence import expected_divergence
from highrank.analysis.log_probs import sampled
from highrank.analysis.rank import Spectrum, measure_ranks, noise_floor, unknown_reason
from highrank.analysis.svd import peak_bytes, singular_values
from highrank.progress import OnProgress
from highrank.studies.audit.layer import Layer

# Copies of the output embedding, in float64, that the linear method makes.
LINEAR_COPIES = 5
# Beyond so many singular values the stable method takes more than some ten minutes.
MAX_STABLE = 5_000
QUICK_TOKENS = 2_000
# A smaller sample of the tokens is not worth measuring.
MIN_TOKENS = 100
# The baseline takes all of fewer contexts, and otherwise a quarter.
MIN_CONTEXTS = 8
RANDOM_WEIGHTS = (
    "the same head with random weights, each tensor normal with its own mean and standard "
    "deviation, on the model's own hidden states"
)


class Method(StrEnum):
    """How singular values are computed; `highrank.analysis.svd` has them."""

    LINEAR = "linear"
    STABLE = "stable"
    FAST = "fast"


@dataclass(frozen=True, kw_only=True)
class RankAt:
    """The rank of the first contexts alone."""

    num_contexts: int
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """The T×V matrix of log-probabilities, or its sampled columns, computed in float64."""

    num_contexts: int
    """Rows."""
    num_tokens: int
    """Columns: V, or how many of the tokens were drawn."""
    method: Method
    method_reason: str
    """Why this method and this number of tokens, in a clause."""
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""
    unknown: str
    """Why a numerical rank is unknown; empty if both are known."""
    bound: int | None
    """The highest rank that the head's form allows; None where no bound is known."""
    bound_reason: str
    """The parts of the bound, or why there is none."""
    ceiling: int
    """The highest rank that this measurement could have shown: the least of contexts, tokens
    and bound."""
    ceiling_reason: str
    """Which of the three: "contexts", "tokens" or "bound"."""
    largest: float
    """σ_max."""
    noise_floor: float
    """Round-off: singular values at or below it are unknown."""
    singular_values: tuple[float, ...]
    """Descending; those that are left out are zero by construction."""
    growth: tuple[RankAt, ...]
    """Rank against the number of contexts, ascending; the last is of all contexts."""

    @property
    def numerical_rank(self) -> float | None:
        """With the tolerance of float32."""
        return self.measures["numerical_rank_float32"]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The numbers of the same head with random weights on the same contexts."""

    description: str
    """How the weights were drawn."""
    num_contexts: int
    """The first so many: all for a linear head, where it costs little, and a quarter for others.
    `RankFacts.growth` has the model's own ranks of these."""
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""
    divergence: float
    """In nats."""
    specialisation: float | None
    """I(component; token), in nats; None for heads with one component."""


class Plan(NamedTuple):
    """How a spectrum is computed."""

    method: Method
    num_tokens: int
    reason: str


def plan_spectrum(layer: Layer, num_contexts: int, quick: bool, budget: int) -> Plan:
    """The best method that fits `budget` bytes; decided before any work is done."""
    V, d = layer.facts.vocab_size, layer.facts.context_size
    linear_bytes = 8 * LINEAR_COPIES * (V + num_contexts) * (d + 2)
    if layer.is_linear and linear_bytes <= budget:
        reason = "the head is linear, so that its factors have all singular values"
        return Plan(Method.LINEAR, V, reason)
    tokens, reasons = V, []
    if quick and tokens > QUICK_TOKENS:
        tokens = QUICK_TOKENS
        reasons.append(f"{tokens:,} of {V:,} tokens were drawn, to be quick")
    if peak_bytes(num_contexts, tokens) > budget:
        tokens = _tokens_that_fit(num_contexts, tokens, budget)
        reasons = [f"{tokens:,} of {V:,} tokens were drawn, as memory for more is not free"]
    method = Method.STABLE
    if min(num_contexts, tokens) > MAX_STABLE:
        method = Method.FAST
        reasons.append("the stable method would take very long")
    reasons = reasons or ["the whole matrix can be folded with full precision"]
    return Plan(method, tokens, "; ".join(reasons))


def _tokens_that_fit(num_contexts: int, most: int, budget: int) -> int:
    """The most tokens of which the spectrum fits."""
    least = peak_bytes(num_contexts, MIN_TOKENS)
    if least > budget:
        raise ValueError(
            f"Out of memory: an audit needs at least {least / 2**20:,.0f} MB, and "
            f"{budget / 2**20:,.0f} MB may be used."
        )
    sizes = range(most)
    return bisect_right(sizes, budget, key=lambda tokens: peak_bytes(num_contexts, tokens)) - 1


def audit_rank(layer: Layer, hidden: Tensor, plan: Plan, on_progress: OnProgress) -> RankFacts:
    """Everything about the rank of log p of the contexts with hidden states (T, D)."""
    T, bound = len(hidden), layer.bound
    counts = sorted({max(1, T // part) for part in (8, 4, 2)})
    spectra = _compute_spectra(layer, hidden, plan, counts, on_progress)
    growth = tuple(
        RankAt(num_contexts=spectrum.shape[0], measures=measure_ranks(spectrum))
        for spectrum in spectra
    )
    # Of equal limits the first is named: more contexts do not help against a bound.
    limits = {} if bound.value is None else {"bound": bound.value}
    limits |= {"tokens": plan.num_tokens, "contexts": T}
    ceiling_reason = min(limits, key=lambda name: limits[name])
    return RankFacts(
        num_contexts=T,
        num_tokens=plan.num_tokens,
        method=plan.method,
        method_reason=plan.reason,
        measures=growth[-1].measures,
        unknown=unknown_reason(spectra[-1]),
        bound=bound.value,
        bound_reason=bound.reason,
        ceiling=limits[ceiling_reason],
        ceiling_reason=ceiling_reason,
        largest=spectra[-1].values[0].item(),
        noise_floor=noise_floor(spectra[-1]),
        singular_values=tuple(spectra[-1].values.tolist()),
        growth=growth,
    )


def random_baseline(layer: Layer, hidden: Tensor, plan: Plan, on_progress: OnProgress) -> Baseline:
    """The head with random weights on the first of the hidden states (T, D).

    Args:
        plan: how the model's own spectrum was computed.
    """
    T, random = len(hidden), layer.randomised()
    if plan.method is not Method.LINEAR and T >= MIN_CONTEXTS:
        T //= 4
    first = hidden[:T]
    (spectrum,) = _compute_spectra(random, first, plan, (), on_progress)
    mixture = None
    if random.mixture is not None:
        mixture = component_report(random.mixture, first, num_pair_contexts=1)
    return Baseline(
        description=RANDOM_WEIGHTS,
        num_contexts=T,
        measures=measure_ranks(spectrum),
        divergence=expected_divergence(random.log_probs(first, torch.float32)).nats,
        specialisation=None if mixture is None else mixture.specialisation,
    )


def _compute_spectra(
    layer: Layer, hidden: Tensor, plan: Plan, counts: Sequence[int], on_progress: OnProgress
) -> tuple[Spectrum, ...]:
    """Spectra of the first contexts, as many as each of `counts`, and of all as the last."""
    if plan.method is Method.LINEAR:
        return layer.linear_spectra(hidden, counts=counts, on_progress=on_progress)
    source = layer.log_probs(hidden, torch.float64)
    if plan.num_tokens < source.vocab_size:
        source = sampled(source, plan.num_tokens)
    return singular_values(source, plan.method, counts=counts, on_progress=on_progress)
