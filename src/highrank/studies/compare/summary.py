"""From runs to rows: means, differences from the control, costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.contrasts import Contrast, Pair, analyse
from highrank.studies.compare.curve import break_even
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.record import Mark, RunRecord
from highrank.studies.compare.result import Cost, Regime, Row, Smaller
from highrank.studies.compare.variant import Variant

WITH_CACHE = "control + cache"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A variant, or the control with a cache, with its marks in one regime."""

    variant: Variant
    name: str
    label: str
    marks: dict[int, Mark]
    """By seed."""
    is_control: bool

    @property
    def is_adaptive(self) -> bool:
        return self.variant.config.head.kind.startswith("adaptive")


def summarise_regime(plan: Plan, runs: Sequence[RunRecord], regime: str) -> Regime | None:
    """Rows and differences at equal tokens or at equal time; None if nothing was measured."""
    measured, seeds = _complete(_measured(plan, runs, regime), plan.seeds)
    if not measured or not seeds:
        return None
    valid, test = (
        np.array([[getattr(one.marks[seed], name) for seed in seeds] for one in measured])
        for name in ("valid_loss", "test_loss")
    )
    controls = {one.variant.embedding_size: i for i, one in enumerate(measured) if one.is_control}
    pairs = [
        (i, controls[one.variant.embedding_size])
        for i, one in enumerate(measured)
        if not one.is_control and one.variant.embedding_size in controls
    ]
    found, on_test = analyse(valid, pairs), analyse(test, pairs)
    singles = _against_singles(valid, measured, pairs)
    order = valid.mean(1).argsort()
    best = int(order[0])
    best_control = next((int(i) for i in order if measured[i].is_control), best)
    return Regime(
        name=regime,
        amount=plan.num_tokens if regime == "tokens" else plan.cpu_seconds or 0.0,
        seeds=tuple(seeds),
        rows=tuple(
            replace(
                _row(one, valid[i], test[i]),
                valid=None if found is None else _of(found.contrasts, pairs, i),
                test=None if on_test is None else _of(on_test.contrasts, pairs, i),
                single=singles[i][0] if i in singles else None,
                single_label=singles[i][1] if i in singles else "",
            )
            for i, one in enumerate(measured)
        ),
        degrees=None if found is None else found.degrees,
        is_pooled=found is not None and found.is_pooled,
        error=None if found is None else found.error,
        detectable=None if found is None else found.detectable,
        best=measured[best].name,
        best_control=measured[best_control].name,
        contrast=_best_contrast(valid, measured, order.tolist(), best_control),
        smaller=tuple(_smaller(valid, measured, order.tolist(), best_control)),
    )


def _measured(plan: Plan, runs: Sequence[RunRecord], regime: str) -> list[Measured]:
    """Variants that did not diverge and have a mark; the cache follows its control."""
    found = []
    for variant in plan.variants:
        own = [run for run in runs if run.variant == variant.name]
        if any(run.state == "diverged" for run in own):
            continue
        marks = {run.seed: run.marks[regime] for run in own if regime in run.marks}
        cached = {run.seed: run.cache[regime] for run in own if regime in run.cache}
        kinds = (
            (variant.name, variant.label, marks),
            (f"{variant.name}+cache", WITH_CACHE, cached),
        )
        found += [
            Measured(
                variant=variant,
                name=name,
                label=label,
                marks=some,
                is_control=variant.is_control and name == variant.name,
            )
            for name, label, some in kinds
            if some
        ]
    return found


def _complete(measured: list[Measured], seeds: Sequence[int]) -> tuple[list[Measured], list[int]]:
    """The seeds in which all were measured; if there is none, the seed with most, and those."""
    complete = [seed for seed in seeds if all(seed in one.marks for one in measured)]
    if complete or not measured:
        return measured, complete
    seed = max(seeds, key=lambda seed: sum(seed in one.marks for one in measured))
    return [one for one in measured if seed in one.marks], [seed]


def _row(one: Measured, valid: NDArray[np.float64], test: NDArray[np.float64]) -> Row:
    """Without the differences."""
    marks, has_spread = list(one.marks.values()), len(valid) > 1
    return Row(
        name=one.name,
        label=one.label,
        embedding_size=one.variant.embedding_size,
        num_components=one.variant.num_components,
        num_seeds=len(valid),
        valid_loss=float(valid.mean()),
        valid_deviation=float(valid.std(ddof=1)) if has_spread else None,
        test_loss=float(test.mean()),
        test_deviation=float(test.std(ddof=1)) if has_spread else None,
        gap=float(np.mean([mark.gap for mark in marks])),
        tokens=float(np.mean([mark.tokens for mark in marks])),
        cpu_seconds=float(np.mean([mark.cpu_seconds for mark in marks])),
        valid=None,
        test=None,
    )


def _of(contrasts: Sequence[Contrast], pairs: Sequence[Pair], index: int) -> Contrast | None:
    return next((c for c, (i, _) in zip(contrasts, pairs, strict=True) if i == index), None)


def _against_singles(
    valid: NDArray[np.float64], measured: Sequence[Measured], pairs: Sequence[Pair]
) -> dict[int, tuple[Contrast, str]]:
    """What says whether the bottleneck matters: each mixture against the best single softmax.

    An adaptive mixture may beat the control because it is adaptive: an adaptive softmax counts,
    too, and without one an adaptive mixture says nothing. All pairs that are looked at count.

    Args:
        pairs: of each head and its control.
    """
    means, found = valid.mean(1), {}
    singles = [
        i
        for i, one in enumerate(measured)
        if one.variant.is_single and one.name == one.variant.name
    ]
    mixtures = [i for i, one in enumerate(measured) if one.variant.is_mixture]
    family = [
        (i, j)
        for i in mixtures
        for j in singles
        if measured[i].variant.embedding_size == measured[j].variant.embedding_size
    ]
    for i in mixtures:
        others = [j for mixture, j in family if mixture == i]
        is_known = any(measured[j].is_adaptive for j in others)
        if not others or (measured[i].is_adaptive and not is_known):
            continue
        best = min(others, key=means.__getitem__)
        analysis = analyse(valid, [(i, best)], [*dict.fromkeys((*pairs, *family))])
        if analysis is not None:
            found[i] = analysis.contrasts[0], measured[best].label
    return found


def _best_contrast(
    valid: NDArray[np.float64], measured: Sequence[Measured], order: Sequence[int], control: int
) -> Contrast | None:
    """The best of all others against the best control: chosen by looking, so all pairs count."""
    best = next((i for i in order if not measured[i].is_control), None)
    if best is None or not measured[control].is_control:
        return None
    family = list(combinations(range(len(measured)), 2))
    found = analyse(valid, [(best, control)], family)
    return None if found is None else found.contrasts[0]


def _smaller(
    valid: NDArray[np.float64], measured: Sequence[Measured], order: Sequence[int], control: int
) -> Iterator[Smaller]:
    """The best control against the best of each smaller d."""
    family = list(combinations(range(len(measured)), 2))
    size = measured[control].variant.embedding_size
    for smaller in sorted({one.variant.embedding_size for one in measured}):
        best = next(i for i in order if measured[i].variant.embedding_size == smaller)
        found = analyse(valid, [(control, best)], family) if smaller < size else None
        if found is not None:
            yield Smaller(
                embedding_size=smaller, label=measured[best].label, contrast=found.contrasts[0]
            )


def summarise_costs(
    plan: Plan, runs: Sequence[RunRecord], regime: Regime | None
) -> tuple[Cost, ...]:
    """Whether what each head wins at equal tokens pays for its time.

    Args:
        regime: equal tokens.
    """
    if regime is None:
        return ()
    rows = {row.name: row for row in regime.rows}
    found = []
    for variant in plan.variants:
        control = plan.variants[plan.controls[variant.embedding_size]]
        if variant.is_control or variant.name not in rows or control.name not in rows:
            continue
        one, other = rows[variant.name], rows[control.name]
        ratio = (one.cpu_seconds / one.tokens) / (other.cpu_seconds / other.tokens)
        curves = [run.curve for run in runs if run.variant == control.name and run.curve]
        needed = break_even(curves, regime.amount, ratio)
        found.append(
            Cost(
                name=variant.name,
                label=one.label,
                ratio=ratio,
                gain=other.valid_loss - one.valid_loss,
                needed=needed,
                verdict=_pays(one.valid, needed),
            )
        )
    return tuple(found)


def _pays(contrast: Contrast | None, needed: float) -> str:
    if contrast is None or contrast.low < -needed < contrast.high:
        return "cannot tell"
    return "pays" if contrast.high <= -needed else "does not pay"
