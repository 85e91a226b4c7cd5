"""Records of the runs of a comparison, from their `metrics.jsonl` alone, and learning curves."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from highrank.evaluation.check import Finding
from highrank.run.folder import METRICS_FILE
from highrank.studies.compare.plan import Plan, Regime

# A run is disturbed if it waited for the processor, or its speed changed, so much more than others.
MOST_WAITING, MOST_CHANGE = 1.25, 1.3
# Validations at the end of a curve that give its slope beyond them.
NUM_LAST = 4

# Of the control's evaluation, besides static.
METHODS = ("cache", "temperature")

Line = Mapping[str, Any]
Record = TypeVar("Record")


class RunState(StrEnum):
    FINISHED = "finished"
    DIVERGED = "diverged"
    UNFINISHED = "unfinished"
    NOT_BEGUN = "not begun"

    @property
    def is_final(self) -> bool:
        return self in (RunState.FINISHED, RunState.DIVERGED)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A validation on the way."""

    tokens: int
    cpu_seconds: float
    train_loss: float
    """Mean of the epoch so far, with dropout."""
    valid_loss: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The best model so far, at equal tokens or at equal time; losses in nats per token."""

    step: int
    tokens: int
    cpu_seconds: float
    seconds: float
    """Seconds of training alone."""
    valid_loss: float
    test_loss: float
    train_loss: float
    """On as many training tokens as valid has, without dropout."""

    @property
    def gap(self) -> float:
        """Generalisation gap: valid minus train."""
        return self.valid_loss - self.train_loss


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    variant: str
    seed: int
    state: RunState
    note: str
    curve: tuple[Point, ...]
    marks: dict[str, Mark]
    """By regime."""
    methods: dict[str, dict[str, Mark]]
    """By method and regime, for a control: with a cache at evaluation, at a temperature."""
    tokens: int
    cpu_seconds: float
    seconds: float
    speed_change: float
    """CPU seconds per token of the slowest slice over those of the fastest."""
    is_disturbed: bool
    analysis: dict[str, Any]
    """Ranks and specialisation."""
    check: tuple[Finding, ...] | None = None
    """Whether its scores are those of a distribution, for a head with further components, and for
    each method that is not static."""

    @property
    def waiting(self) -> float:
        """Seconds for each CPU second of training."""
        return self.seconds / self.cpu_seconds if self.cpu_seconds > 0 else 1.0


def read_runs(plan: Plan, folder: Path) -> tuple[RunRecord, ...]:
    """Runs of every variant and seed; disturbed ones are found by comparison with the rest."""
    runs = tuple(
        _read_run(plan, folder, index, seed)
        for index in range(len(plan.variants))
        for seed in plan.seeds
    )
    begun = [run for run in runs if run.cpu_seconds > 0]
    if not begun:
        return runs
    most_waiting = MOST_WAITING * statistics.median(run.waiting for run in begun)
    most_change = MOST_CHANGE * statistics.median(run.speed_change for run in begun)
    return tuple(
        replace(run, is_disturbed=run.waiting > most_waiting or run.speed_change > most_change)
        for run in runs
    )


def _read_run(plan: Plan, folder: Path, index: int, seed: int) -> RunRecord:
    by_event: dict[str, list[Line]] = {}
    for line in _read_lines(plan.run_folder(folder, index, seed) / METRICS_FILE):
        by_event.setdefault(line["event"], []).append(line)
    marks = {Regime(line["regime"]): line for line in by_event.get("mark", [])}
    slices = by_event.get("slice", [])
    speeds = [line["cpu_seconds"] / line["tokens"] for line in slices if line["cpu_seconds"] > 0]
    diverged, analyses = by_event.get("diverged"), by_event.get("analysis", [{}])
    return RunRecord(
        variant=plan.variants[index].name,
        seed=seed,
        state=_state(by_event),
        note=diverged[0]["reason"] if diverged else "",
        curve=tuple(_pick(Point, line) for line in by_event.get("epoch", [])),
        marks={regime: _pick(Mark, line) for regime, line in marks.items()},
        methods={method: _by_method(method, marks) for method in METHODS},
        tokens=sum(line["tokens"] for line in slices),
        cpu_seconds=sum(line["cpu_seconds"] for line in slices),
        seconds=sum(line["seconds"] for line in slices),
        speed_change=max(speeds) / min(speeds) if speeds else 1.0,
        is_disturbed=False,
        analysis={k: v for k, v in analyses[-1].items() if k not in ("event", "check")},
        check=_check(analyses[-1].get("check"), marks),
    )


def _by_method(method: str, marks: Mapping[Regime, Line]) -> dict[str, Mark]:
    return {
        regime: replace(
            _pick(Mark, line),
            valid_loss=line[f"{method}_valid_loss"],
            test_loss=line[f"{method}_test_loss"],
        )
        for regime, line in marks.items()
        if method in line
    }


def _check(
    found: Sequence[dict[str, Any]] | None, marks: Mapping[Regime, Line]
) -> tuple[Finding, ...] | None:
    """The findings on a run, and on other methods by which it was evaluated."""
    every = list(found or ())
    for line in marks.values():
        for method in METHODS:
            every += line.get(method, {}).get("check", ())
    return tuple(Finding(**one) for one in every) or None


def _state(events: Mapping[str, Any]) -> RunState:
    if "diverged" in events:
        return RunState.DIVERGED
    if "analysis" in events:
        return RunState.FINISHED
    return RunState.UNFINISHED if events else RunState.NOT_BEGUN


def _pick(kind: type[Record], line: Line) -> Record:
    """A dataclass of the fields that a line has among others."""
    return kind(**{field.name: line[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _read_lines(path: Path) -> list[Line]:
    """Whole lines; the last may be half written."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def loss_at(points: Sequence[Point], tokens: float) -> float:
    """The best loss on valid after so many tokens of a curve that has a validation.

    Between validations its logarithm is linear in the logarithm of the tokens; beyond the last one
    the slope of the last four continues.
    """
    x = [math.log(point.tokens) for point in points]
    y = list(accumulate((math.log(point.valid_loss) for point in points), min))
    at = math.log(tokens)
    if at <= x[-1] or len(x) == 1:
        return math.exp(float(np.interp(at, x, y)))
    slope = min(0.0, float(np.polyfit(x[-NUM_LAST:], y[-NUM_LAST:], 1)[0]))
    return math.exp(y[-1] + slope * (at - x[-1]))


def mean_loss_at(curves: Sequence[Sequence[Point]], tokens: float) -> float:
    """The mean over seeds."""
    return sum(loss_at(points, tokens) for points in curves) / len(curves)


def break_even(curves: Sequence[Sequence[Point]], tokens: float, ratio: float) -> float:
    """Nats that a head must win at equal tokens to pay for its time.

    In the time in which a head that costs `ratio` times as much reads so many tokens, the control
    reads `ratio` times as many, and is this much better for it.

    Args:
        curves: learning curves of the control, one per seed.
    """
    return mean_loss_at(curves, tokens) - mean_loss_at(curves, ratio * tokens)


def curves_of(runs: Sequence[RunRecord], variant: str) -> list[tuple[Point, ...]]:
    """Learning curves of a variant's runs that have begun."""
    return [run.curve for run in runs if run.variant == variant and run.curve]
