"""From runs to a result: means over seeds, differences from the control, costs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.contrasts import (
    Analysis,
    Contrast,
    Pair,
    analyse,
    is_homogeneous,
    residuals,
)
from highrank.build import build_head
from highrank.environment import environment
from highrank.heads.components.ngram import FOLDER as NGRAM_FOLDER
from highrank.ngram import TableSize, read_size
from highrank.studies.compare import sentences
from highrank.studies.compare.baselines import ngram_alone
from highrank.studies.compare.networks import network_title
from highrank.studies.compare.plan import Plan, Regime, plan_to_json
from highrank.studies.compare.presets import open_source
from highrank.studies.compare.recommendation import recommend
from highrank.studies.compare.record import (
    METHODS,
    Mark,
    RunRecord,
    RunState,
    break_even,
    curves_of,
    read_runs,
)
from highrank.studies.compare.result import (
    CompareResult,
    Cost,
    Noisy,
    Payoff,
    RegimeResult,
    Row,
    Smaller,
    VariantResult,
)
from highrank.studies.compare.variant import Variant

Floats = NDArray[np.float64]
# A variant blurs the others if without it differences of this fraction would be found.
MUCH_FINER = 2 / 3


def summarise(plan: Plan, folder: Path, elapsed: float = 0.0) -> CompareResult:
    """Everything that the runs in a comparison's folder show, finished or not."""
    corpus = open_source(plan.corpus, plan.max_tokens)
    runs = read_runs(plan, folder)
    found = [summarise_regime(plan, runs, regime) for regime in plan.regimes]
    regimes = tuple(regime for regime in found if regime is not None)
    costs = summarise_costs(plan, runs, *found)
    # The recommended command trains on the whole corpus.
    num_train = len(open_source(plan.corpus, None).split("train"))
    is_complete = all(run.state.is_final for run in runs)
    name, vocab_size = Path(plan.corpus).name, len(corpus.vocabulary)
    return CompareResult(
        corpus=name,
        vocab_size=vocab_size,
        num_train=len(corpus.split("train")),
        floor=getattr(corpus, "floor", None),
        ngram=ngram_alone(plan, corpus) if plan.cache else None,
        folder=str(folder),
        verdict=sentences.verdict(regimes, costs, name),
        answer=sentences.answer(plan, regimes, costs, is_complete, name),
        recommendation=recommend(plan, regimes, costs, num_train),
        is_complete=is_complete,
        equal=plan.equal,
        variants=tuple(
            _summarise_variant(one, vocab_size, runs, _table_size(plan, folder, index))
            for index, one in enumerate(plan.variants)
        ),
        regimes=regimes,
        costs=costs,
        runs=runs,
        plan=json.loads(json.dumps(plan_to_json(plan))),
        elapsed=elapsed,
        environment=environment(),
    )


def _summarise_variant(
    variant: Variant, vocab_size: int, runs: Sequence[RunRecord], table: TableSize | None
) -> VariantResult:
    own = [run for run in runs if run.variant == variant.name]
    begun = [run for run in own if run.tokens]
    keys = sorted({key for run in own for key in run.analysis})
    with torch.device("meta"):
        rank_bound = build_head(variant.config, vocab_size).rank_bound
    return VariantResult(
        name=variant.name,
        label=variant.label,
        description=sentences.describe(variant),
        network=network_title(variant.config),
        spec=variant.spec,
        role=variant.role,
        embedding_size=variant.embedding_size,
        context_size=variant.context_size,
        num_components=variant.num_components,
        layers=variant.layers,
        num_parameters=variant.num_parameters,
        table=table,
        cpu_per_token=sum(r.cpu_seconds for r in begun) / sum(r.tokens for r in begun)
        if begun
        else None,
        num_disturbed=sum(run.is_disturbed for run in own),
        num_diverged=sum(run.state is RunState.DIVERGED for run in own),
        num_finished=sum(run.state is RunState.FINISHED for run in own),
        check=tuple(one for run in own for one in run.check or ()) or None,
        rank_bound=rank_bound,
        analysis={key: _mean([run.analysis.get(key) for run in own]) for key in keys},
    )


def _table_size(plan: Plan, folder: Path, index: int) -> TableSize | None:
    """The size of a variant's n-gram, which is the same with every seed."""
    runs = [plan.run_folder(Path(folder), index, seed) for seed in plan.seeds]
    found = (run / NGRAM_FOLDER for run in runs if (run / NGRAM_FOLDER).is_dir())
    return next(map(read_size, found), None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A variant, or the control by another method, with its marks in one regime."""

    variant: Variant
    marks: dict[int, Mark]
    """By seed."""
    method: str = ""
    """How it is evaluated, unless statically: cache, temperature."""

    @property
    def name(self) -> str:
        return f"{self.variant.name}+{self.method}" if self.method else self.variant.name

    @property
    def label(self) -> str:
        label = self.variant.label
        return label.replace("control, K = 1", f"control + {self.method}") if self.method else label

    @property
    def size(self) -> int:
        """E."""
        return self.variant.embedding_size

    @property
    def family(self) -> tuple[str, int]:
        return self.variant.family

    @property
    def is_control(self) -> bool:
        return self.variant.is_control and not self.method

    def row(self, valid: Floats, test: Floats) -> Row:
        """A row without contrasts, from its losses by seed."""
        marks, has_spread = list(self.marks.values()), len(valid) > 1
        return Row(
            name=self.name,
            label=self.label,
            network=network_title(self.variant.config),
            embedding_size=self.size,
            num_components=self.variant.num_components,
            num_seeds=len(valid),
            valid_loss=float(valid.mean()),
            valid_deviation=float(valid.std(ddof=1)) if has_spread else None,
            test_loss=float(test.mean()),
            test_deviation=float(test.std(ddof=1)) if has_spread else None,
            gap=float(np.mean([mark.gap for mark in marks])),
            tokens=float(np.mean([mark.tokens for mark in marks])),
            cpu_seconds=float(np.mean([mark.cpu_seconds for mark in marks])),
        )


def summarise_regime(plan: Plan, runs: Sequence[RunRecord], regime: Regime) -> RegimeResult | None:
    """Rows and differences at equal tokens or at equal time; None if nothing was measured."""
    measured, seeds = _complete(list(_measured(plan, runs, regime)), plan.seeds)
    if not measured or not seeds:
        return None
    valid = np.array([[one.marks[seed].valid_loss for seed in seeds] for one in measured])
    test = np.array([[one.marks[seed].test_loss for seed in seeds] for one in measured])
    controls = {one.family: i for i, one in enumerate(measured) if one.is_control}
    pairs = [
        (i, controls[one.family])
        for i, one in enumerate(measured)
        if not one.is_control and one.family in controls
    ]
    found = analyse(valid, pairs)
    on_valid, on_test = _by_variant(pairs, found), _by_variant(pairs, analyse(test, pairs))
    singles = _against_singles(valid, measured, pairs)
    order = valid.mean(1).argsort().tolist()
    control = next((i for i in order if measured[i].is_control), order[0])
    return RegimeResult(
        name=regime,
        amount=plan.num_tokens if regime is Regime.TOKENS else plan.cpu_seconds or 0.0,
        seeds=tuple(seeds),
        rows=tuple(
            replace(
                one.row(valid[i], test[i]),
                valid=on_valid.get(i),
                test=on_test.get(i),
                single=singles[i][0] if i in singles else None,
                single_label=singles[i][1] if i in singles else "",
            )
            for i, one in enumerate(measured)
        ),
        degrees=None if found is None else found.degrees,
        is_pooled=found is not None and found.is_pooled,
        error=None if found is None else found.error,
        detectable=None if found is None else found.detectable,
        best=measured[order[0]].name,
        best_control=measured[control].name,
        contrast=_best_contrast(valid, measured, order, control),
        smaller=tuple(_against_smaller(valid, measured, order, control)),
        noisy=None if found is None else _noisy(valid, measured, pairs, found.detectable),
    )


def _noisy(
    valid: Floats, measured: Sequence[Measured], pairs: Sequence[Pair], detectable: float
) -> Noisy | None:
    """The variant whose seeds differ most, if that blurs all others."""
    if len(measured) < 3 or is_homogeneous(valid):
        return None
    most = int((residuals(valid) ** 2).sum(1).argmax())
    others = np.delete(valid, most, axis=0)  # (C - 1, S)
    degrees = (len(others) - 1) * (others.shape[1] - 1)
    error = np.sqrt((residuals(others) ** 2).sum() / degrees)
    ratio = float((valid[most] - others.mean(0)).std(ddof=1) / max(error, 1e-12))
    name = measured[most].name
    if measured[most].is_control:
        return Noisy(name=name, ratio=ratio, detectable=None)
    # Rows after the one that is left out move up.
    kept = [(a - (a > most), b - (b > most)) for a, b in pairs if a != most]
    without = analyse(others, kept)
    if without is None or without.detectable > MUCH_FINER * detectable:
        return None
    return Noisy(name=name, ratio=ratio, detectable=without.detectable)


def _measured(plan: Plan, runs: Sequence[RunRecord], regime: Regime) -> Iterator[Measured]:
    """Variants that did not diverge and have a mark; other methods follow their control."""
    for variant in plan.variants:
        own = [run for run in runs if run.variant == variant.name]
        if any(run.state is RunState.DIVERGED for run in own):
            continue
        if marks := {run.seed: run.marks[regime] for run in own if regime in run.marks}:
            yield Measured(variant=variant, marks=marks)
        for method in METHODS:
            found = {run.seed: run.methods.get(method, {}) for run in own}
            if marks := {seed: one[regime] for seed, one in found.items() if regime in one}:
                yield Measured(variant=variant, marks=marks, method=method)


def _complete(measured: list[Measured], seeds: Sequence[int]) -> tuple[list[Measured], list[int]]:
    """The seeds in which all were measured; if there is none, the seed with most, and those."""
    complete = [seed for seed in seeds if all(seed in one.marks for one in measured)]
    if complete or not measured:
        return measured, complete
    seed = max(seeds, key=lambda seed: sum(seed in one.marks for one in measured))
    return [one for one in measured if seed in one.marks], [seed]


def _by_variant(pairs: Sequence[Pair], analysis: Analysis | None) -> dict[int, Contrast]:
    if analysis is None:
        return {}
    return {i: one for (i, _), one in zip(pairs, analysis.contrasts, strict=True)}


def _against_singles(
    valid: Floats, measured: Sequence[Measured], pairs: Sequence[Pair]
) -> dict[int, tuple[Contrast, str]]:
    """Each mixture against the best single softmax, which says whether the bottleneck matters.

    An adaptive mixture may beat the control because it is adaptive: an adaptive softmax counts,
    too, and without one an adaptive mixture says nothing. All pairs that are looked at count.

    Args:
        pairs: each head and its control.
    """
    means, found = valid.mean(1), {}
    singles = [i for i, one in enumerate(measured) if one.variant.is_single and not one.method]
    mixtures = [i for i, one in enumerate(measured) if one.variant.is_mixture]
    family = [(i, j) for i in mixtures for j in singles if measured[i].family == measured[j].family]
    for i in mixtures:
        others = [j for mixture, j in family if mixture == i]
        is_known = any(measured[j].variant.is_adaptive for j in others)
        if not others or (measured[i].variant.is_adaptive and not is_known):
            continue
        best = min(others, key=means.__getitem__)
        analysis = analyse(valid, [(i, best)], [*dict.fromkeys((*pairs, *family))])
        if analysis is not None:
            found[i] = analysis.contrasts[0], measured[best].label
    return found


def _contrast_among_all(valid: Floats, pair: Pair) -> Contrast | None:
    """A pair that was chosen by looking: corrected for all pairs."""
    found = analyse(valid, [pair], list(combinations(range(len(valid)), 2)))
    return None if found is None else found.contrasts[0]


def _best_contrast(
    valid: Floats, measured: Sequence[Measured], order: Sequence[int], control: int
) -> Contrast | None:
    """The best of all others against the best control."""
    best = next((i for i in order if not measured[i].is_control), None)
    if best is None or not measured[control].is_control:
        return None
    return _contrast_among_all(valid, (best, control))


def _against_smaller(
    valid: Floats, measured: Sequence[Measured], order: Sequence[int], control: int
) -> Iterator[Smaller]:
    """The best control against the best of each smaller d."""
    for size in sorted({one.size for one in measured if one.size < measured[control].size}):
        best = next(i for i in order if measured[i].size == size)
        contrast = _contrast_among_all(valid, (control, best))
        if contrast is not None:
            yield Smaller(embedding_size=size, label=measured[best].label, contrast=contrast)


def summarise_costs(
    plan: Plan,
    runs: Sequence[RunRecord],
    regime: RegimeResult | None,
    at_equal_time: RegimeResult | None = None,
) -> tuple[Cost, ...]:
    """Whether what each head wins at equal tokens pays for its time.

    Args:
        regime: equal tokens.
        at_equal_time: decides, where it was measured.
    """
    if regime is None:
        return ()
    rows, found = {row.name: row for row in regime.rows}, []
    timed = {} if at_equal_time is None else {row.name: row for row in at_equal_time.rows}
    for variant in plan.variants:
        row, control = rows.get(variant.name), rows.get(plan.control_of(variant).name)
        if variant.is_control or row is None or control is None:
            continue
        ratio = (row.cpu_seconds / row.tokens) / (control.cpu_seconds / control.tokens)
        needed = break_even(curves_of(runs, control.name), regime.amount, ratio)
        found.append(
            Cost(
                name=variant.name,
                label=row.label,
                ratio=ratio,
                gain=control.valid_loss - row.valid_loss,
                needed=needed,
                verdict=_payoff(timed[row.name].valid, 0.0)
                if row.name in timed
                else _payoff(row.valid, needed),
            )
        )
    return tuple(found)


def _payoff(contrast: Contrast | None, needed: float) -> Payoff:
    if contrast is None or contrast.low < -needed < contrast.high:
        return Payoff.CANNOT_TELL
    return Payoff.PAYS if contrast.high <= -needed else Payoff.DOES_NOT_PAY
