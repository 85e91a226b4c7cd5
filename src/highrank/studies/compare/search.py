"""Successive halving: all cells train a little, the better half goes on, a few to the end.

Jamieson and Talwalkar (2016), arXiv 1502.07943. A rung is a fraction of a whole run; at each one
the worse half of the heads, by the mean loss on valid over seeds, is dropped. Controls stay. As the
rate is constant, those that go on lose nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from highrank.studies.compare.plan import Plan
from highrank.studies.compare.record import RunRecord


def survivors(
    plan: Plan, runs: Sequence[RunRecord], active: Sequence[int], fraction: float
) -> list[int]:
    """The controls, and the better half of the heads that were active until this rung."""
    heads = [index for index in active if not plan.cells[index].is_control]

    def loss(index: int) -> float:
        name = plan.cells[index].name
        found = [run.rungs.get(fraction, math.inf) for run in runs if run.cell == name]
        return sum(found) / max(1, len(found))

    kept = sorted(heads, key=loss)[: math.ceil(len(heads) / 2)]
    return [index for index in active if plan.cells[index].is_control or index in kept]


def active_at(plan: Plan, runs: Sequence[RunRecord], fraction: float) -> list[int]:
    """The cells that train beyond all rungs below this fraction, by what the runs show."""
    active = list(range(len(plan.cells)))
    for rung in plan.rungs:
        if rung < fraction:
            active = survivors(plan, runs, active, rung)
    return active


def with_dropped(plan: Plan, runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Runs that a search has dropped are called so, once a rung is complete."""
    found, active = list(runs), list(range(len(plan.cells)))
    for rung in plan.rungs:
        names = {plan.cells[index].name for index in active}
        reached = all(
            rung in run.rungs or run.state == "diverged" for run in runs if run.cell in names
        )
        if not reached:
            break
        active = survivors(plan, runs, active, rung)
        kept = {plan.cells[index].name for index in active}
        text = f"dropped after {rung * 100:g} % of a run"
        found = [
            replace(run, state="dropped", note=text)
            if run.cell in names - kept and run.state != "diverged"
            else run
            for run in found
        ]
    return tuple(found)
