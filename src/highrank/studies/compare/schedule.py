"""Whose turn it is: the runs of a seed take turns, so that a busy machine is the same for all."""

from collections.abc import Sequence

from highrank.studies.compare.plan import Plan
from highrank.studies.compare.pool import Slice
from highrank.studies.compare.record import RunRecord
from highrank.studies.compare.run import SliceOutcome

# A run is trained in so many turns, of so many seconds at least.
NUM_TURNS, SHORTEST_TURN = 8, 2.0


class Schedule:
    """Whose turn it is: within a seed the run that is furthest behind."""

    def __init__(self, plan: Plan, runs: Sequence[RunRecord]) -> None:
        self.plan = plan
        index_of = {cell.name: index for index, cell in enumerate(plan.cells)}
        self.done = {
            (index_of[run.cell], run.seed): self._fraction(run, index_of[run.cell]) for run in runs
        }

    def _fraction(self, run: RunRecord, index: int) -> float:
        if run.state in ("finished", "diverged"):
            return 1.0
        return self._of(index, run.cpu_seconds)

    def _of(self, index: int, cpu_seconds: float) -> float:
        fraction = cpu_seconds / max(1e-9, self.plan.cpu_of(index))
        return min(0.99, fraction)

    @property
    def fraction(self) -> float:
        """Of all that is to be trained."""
        cost = {key: self.plan.seconds_of(key[0]) for key in self.done}
        done = sum(cost[key] * self.done[key] for key in cost)
        return done / max(1e-9, sum(cost.values()))

    def next(self, running: set[tuple[int, int]]) -> Slice | None:
        for seed in self.plan.seeds:
            left = [
                key
                for key, fraction in self.done.items()
                if key[1] == seed and fraction < 1 and key not in running
            ]
            if left:
                index, _ = min(left, key=self.done.__getitem__)
                turn = max(SHORTEST_TURN, self.plan.cpu_of(index) / NUM_TURNS)
                return Slice(index=index, seed=seed, cpu_seconds=turn)
        return None

    def note(self, outcome: SliceOutcome) -> None:
        key = outcome.index, outcome.seed
        if outcome.state in ("finished", "diverged"):
            self.done[key] = 1.0
        elif outcome.tokens:
            self.done[key] = self._of(outcome.index, outcome.cpu_seconds)
