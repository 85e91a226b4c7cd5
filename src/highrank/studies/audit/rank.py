"""The spectrum of an audited layer: by which method, of how many words, and what it says.

T contexts, V words, d size of what meets the output embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, float64

from highrank.analysis.log_probs import sampled
from highrank.analysis.rank import RankReport, Spectrum, rank_report
from highrank.analysis.svd import peak_bytes, singular_values
from highrank.studies.audit.layer import Layer
from highrank.studies.audit.result import EffectiveRank, RankAt, RankFacts

# What an audit may use beside the model, unless half of what is free is less.
MAX_BYTES = 4 * 2**30
# Copies of the words' vectors, in float64, that the way of a linear head makes.
LINEAR_COPIES = 5
# Beyond so many singular values the stable way takes more than some ten minutes.
MAX_STABLE = 5_000
QUICK_WORDS = 2_000
# Below this a sample of the words says nothing about the rest.
MIN_WORDS = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    method: str
    num_words: int
    reason: str


def plan_spectrum(layer: Layer, num_contexts: int, quick: bool, room: int) -> Plan:
    """What can be done in `room` bytes; decided before any work is."""
    V, d = layer.facts.vocab_size, layer.facts.context_size
    if layer.linear_spectra is not None:
        needed = 8 * LINEAR_COPIES * (V + num_contexts) * (d + 2)
        if needed <= room:
            reason = "the head is linear, so that its factors have all singular values"
            return Plan(method="linear", num_words=V, reason=reason)
    words, reasons = V, []
    if quick and words > QUICK_WORDS:
        words = QUICK_WORDS
        reasons.append(f"{words:,} of {V:,} words were drawn, to be quick")
    if peak_bytes(num_contexts, words) > room:
        words = _words_that_fit(num_contexts, words, room)
        reasons = [f"{words:,} of {V:,} words were drawn, as memory for more is not free"]
    if min(num_contexts, words) > MAX_STABLE:
        reasons.append("the stable method would take very long")
        return Plan(method="fast", num_words=words, reason="; ".join(reasons))
    reasons = reasons or ["the whole matrix can be folded with full precision"]
    return Plan(method="stable", num_words=words, reason="; ".join(reasons))


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What an audit may use: half of the free memory, at most 4 GiB."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return min(MAX_BYTES, int(lines["MemAvailable"].split()[0]) * 1024 // 2)
    except (OSError, KeyError, ValueError):
        return MAX_BYTES


def audit_rank(
    layer: Layer, hidden: Tensor, plan: Plan, on_progress: Callable[[float, str], None]
) -> RankFacts:
    """Everything about the rank of log p of the contexts with hidden states (T, D)."""
    T = len(hidden)
    counts = sorted({max(1, T // share) for share in (8, 4, 2)})
    if plan.method == "linear":
        assert layer.linear_spectra is not None
        spectra = layer.linear_spectra(hidden, counts=counts, on_progress=on_progress)
    else:
        source = layer.log_probs(hidden, float64)
        if plan.num_words < source.vocab_size:
            source = sampled(source, num_words=plan.num_words)
        spectra = singular_values(source, plan.method, counts=counts, on_progress=on_progress)
    return _facts(layer, plan, spectra)


def _facts(layer: Layer, plan: Plan, spectra: tuple[Spectrum, ...]) -> RankFacts:
    reports = [rank_report(spectrum, layer.bound) for spectrum in spectra]
    last = reports[-1]
    # Of equal limits the first is named: more contexts do not help against a bound.
    limits = {} if layer.bound.value is None else {"bound": layer.bound.value}
    limits |= {"words": plan.num_words, "contexts": last.num_contexts}
    ceiling_reason = min(limits, key=lambda name: limits[name])
    return RankFacts(
        num_contexts=last.num_contexts,
        num_words=plan.num_words,
        method=plan.method,
        method_reason=plan.reason,
        comparable=last.comparable,
        certified=last.certified,
        unknown=last.unknown,
        bound=layer.bound.value,
        bound_reason=layer.bound.reason,
        ceiling=limits[ceiling_reason],
        ceiling_reason=ceiling_reason,
        effective=_effective(last),
        stable=last.stable,
        entropy=last.entropy,
        largest=last.largest,
        noise_floor=last.noise_floor,
        singular_values=tuple(spectra[-1].values.tolist()),
        growth=tuple(
            RankAt(
                num_contexts=report.num_contexts,
                comparable=report.comparable,
                certified=report.certified,
                effective=_effective(report),
            )
            for report in reports
        ),
    )


def _effective(report: RankReport) -> tuple[EffectiveRank, ...]:
    return tuple(EffectiveRank(epsilon=e, rank=rank) for e, rank in report.effective.items())


def _words_that_fit(num_contexts: int, most: int, room: int) -> int:
    """The most words of which the spectrum fits, by bisection."""
    if peak_bytes(num_contexts, MIN_WORDS) > room:
        raise ValueError(
            f"the free memory must be at least {peak_bytes(num_contexts, MIN_WORDS) / 2**20:,.0f} "
            f"MB for an audit, got {room / 2**20:,.0f} MB that may be used"
        )
    least = MIN_WORDS
    while most - least > 1:
        middle = (least + most) // 2
        if peak_bytes(num_contexts, middle) <= room:
            least = middle
        else:
            most = middle
    return least
