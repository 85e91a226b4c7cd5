"""What the runs of a comparison have come to, from their `metrics.jsonl`; needs no model."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highrank.run import METRICS_FILE
from highrank.studies.compare.plan import Plan

# A run is disturbed if it waited for the processor, or its speed changed, so much more than others.
MOST_WAITING, MOST_CHANGE = 1.25, 1.3


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
    """Of training alone."""
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
    state: str
    """"finished", "diverged", "unfinished" or "not begun"."""
    note: str
    curve: tuple[Point, ...]
    marks: dict[str, Mark]
    """By regime."""
    cache: dict[str, Mark]
    """With a cache at evaluation, for a control."""
    tokens: int
    cpu_seconds: float
    seconds: float
    speed_change: float
    """Of CPU seconds per token, the slowest slice over the fastest."""
    is_disturbed: bool
    analysis: dict[str, Any]
    """Ranks and specialisation."""

    @property
    def waiting(self) -> float:
        """Seconds for each CPU second of training."""
        return self.seconds / self.cpu_seconds if self.cpu_seconds > 0 else 1.0


def read_runs(plan: Plan, folder: Path) -> tuple[RunRecord, ...]:
    """Runs of every variant and seed; disturbed ones are found by comparison with the rest."""
    runs = [
        _read(plan, folder, index, seed)
        for index in range(len(plan.variants))
        for seed in plan.seeds
    ]
    begun = [run for run in runs if run.cpu_seconds > 0]
    if not begun:
        return tuple(runs)
    waiting = statistics.median(run.waiting for run in begun)
    change = statistics.median(run.speed_change for run in begun)
    return tuple(
        _with(
            run,
            is_disturbed=run.waiting > MOST_WAITING * waiting
            or run.speed_change > MOST_CHANGE * change,
        )
        for run in runs
    )


def _with(run: RunRecord, **values: Any) -> RunRecord:
    return RunRecord(**{**run.__dict__, **values})


def _read(plan: Plan, folder: Path, index: int, seed: int) -> RunRecord:
    lines = _lines(plan.run_folder(folder, index, seed) / METRICS_FILE)
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_event.setdefault(line["event"], []).append(line)
    marks = {line["regime"]: line for line in by_event.get("mark", [])}
    slices = by_event.get("slice", [])
    speeds = [line["cpu_seconds"] / line["tokens"] for line in slices if line["cpu_seconds"] > 0]
    diverged = by_event.get("diverged", [])
    return RunRecord(
        variant=plan.variants[index].name,
        seed=seed,
        state=_state(by_event),
        note=diverged[0]["reason"] if diverged else "",
        curve=tuple(
            Point(**{name: line[name] for name in Point.__dataclass_fields__})
            for line in by_event.get("epoch", [])
        ),
        marks={regime: _mark(line) for regime, line in marks.items()},
        cache={
            regime: _mark(
                line
                | {"valid_loss": line["cache_valid_loss"], "test_loss": line["cache_test_loss"]}
            )
            for regime, line in marks.items()
            if "cache" in line
        },
        tokens=sum(line["tokens"] for line in slices),
        cpu_seconds=sum(line["cpu_seconds"] for line in slices),
        seconds=sum(line["seconds"] for line in slices),
        speed_change=max(speeds) / min(speeds) if speeds else 1.0,
        is_disturbed=False,
        analysis={
            name: value
            for name, value in by_event.get("analysis", [{}])[-1].items()
            if name != "event"
        },
    )


def _state(by_event: dict[str, Any]) -> str:
    if "diverged" in by_event:
        return "diverged"
    if "analysis" in by_event:
        return "finished"
    return "unfinished" if by_event else "not begun"


def _mark(line: dict[str, Any]) -> Mark:
    return Mark(**{name: line[name] for name in Mark.__dataclass_fields__})


def _lines(path: Path) -> list[dict[str, Any]]:
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
