"""A comparison before it runs: its variants, how long each trains, and `plan.json`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from highrank.files import from_json, read_json, write_atomically
from highrank.run import config_from_json, config_to_json
from highrank.studies.compare.speed import Speed
from highrank.studies.compare.variant import Variant

PLAN_FILE, FORMAT, VERSION = "plan.json", "highrank comparison", 2
REGIMES = ("parameters", "context", "time", "tokens")
# Of a run's validations: each has √2 times the tokens of the one before it.
NUM_POINTS = 10
# What is left for starting, saving and a machine that is slower than it was.
RESERVE = 0.12
# The slowest variant reaches equal tokens before equal time is over.
MARGIN = 0.9
# With fewer steps nothing has been learned.
FEWEST_STEPS = 150


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides a comparison's numbers, and how long it was thought to take."""

    corpus: str
    """As `highrank.studies.compare.source.open_source` takes it."""
    max_tokens: int | None
    variants: tuple[Variant, ...]
    speeds: tuple[Speed, ...]
    """Of each variant."""
    seeds: tuple[int, ...]
    equal: tuple[str, ...]
    num_tokens: int
    """Equal tokens are compared here."""
    cpu_seconds: float | None
    """Equal time is compared here; None if it is not."""
    cache: bool
    """Whether the control is also evaluated with a cache."""
    test_batch_size: int
    jobs: int
    threads: int
    """Of each job."""
    device: str = "cpu"
    command: str = ""
    """What was typed, for the report."""

    @property
    def regimes(self) -> tuple[str, ...]:
        """Where each run is measured: after equal tokens, after equal time."""
        return ("tokens",) if self.cpu_seconds is None else ("tokens", "time")

    @property
    def controls(self) -> dict[int, int]:
        """The control's index for each d."""
        return {c.embedding_size: i for i, c in enumerate(self.variants) if c.is_control}

    def run_folder(self, folder: Path, index: int, seed: int) -> Path:
        return folder / f"{self.variants[index].name}-seed{seed}"

    def cpu_of(self, index: int) -> float:
        """CPU seconds that a run of this variant trains for, as far as one knows."""
        tokens = self.num_tokens * self.speeds[index].cpu
        return max(tokens, self.cpu_seconds or 0.0)

    def seconds_of(self, index: int) -> float:
        """Seconds of a run of this variant, with its validations and tests."""
        speed = self.speeds[index]
        train = self.cpu_of(index) * speed.wall / speed.cpu
        return train + speed.fixed(len(self.regimes), NUM_POINTS)

    @property
    def seconds(self) -> float:
        """About how long the comparison takes."""
        each = sum(self.seconds_of(index) for index in range(len(self.variants)))
        return each * len(self.seeds) / self.jobs / (1 - RESERVE)


def divided(plan: Plan, budget: float, fewest_tokens: int) -> Plan:
    """The plan with as many tokens, and as much time, as the budget allows.

    Args:
        budget: seconds.
        fewest_tokens: below this, nothing can be learned.
    """
    found = _filled(plan, budget)
    if found is not None and found.num_tokens >= fewest_tokens:
        return found
    raise ValueError(_too_small(plan, budget, fewest_tokens))


def _filled(plan: Plan, budget: float) -> Plan | None:
    """None if evaluation alone takes the budget."""
    num_regimes = 2 if "time" in plan.equal else 1
    fixed = sum(speed.fixed(num_regimes, NUM_POINTS) for speed in plan.speeds)
    left = budget * plan.jobs * (1 - RESERVE) / len(plan.seeds) - fixed
    if left <= 0:
        return None
    if "time" not in plan.equal:
        per_token = sum(speed.wall for speed in plan.speeds)
        return replace(plan, num_tokens=int(left / per_token), cpu_seconds=None)
    wall_per_cpu = sum(speed.wall / speed.cpu for speed in plan.speeds)
    cpu = left / wall_per_cpu
    slowest = max(speed.cpu for speed in plan.speeds)
    return replace(plan, cpu_seconds=cpu, num_tokens=int(MARGIN * cpu / slowest))


def _too_small(plan: Plan, budget: float, fewest_tokens: int) -> str:
    """Which variants to drop, or what budget there must be."""
    order = sorted(range(len(plan.variants)), key=lambda i: plan.speeds[i].wall)
    needed = budget
    while (found := _filled(plan, needed)) is None or found.num_tokens < fewest_tokens:
        needed *= 1.1
    text = (
        f"the budget must be at least {needed / 60:.1f}m for {len(plan.variants)} variants of "
        f"{len(plan.seeds)} seeds, got {budget / 60:.1f}m"
    )
    kept = [i for i in order if not plan.variants[i].is_control]
    dropped: list[str] = []
    while kept:
        dropped.append(plan.variants[kept.pop()].label)
        some = _only(plan, [i for i, c in enumerate(plan.variants) if c.is_control or i in kept])
        found = _filled(some, budget)
        if kept and found is not None and found.num_tokens >= fewest_tokens:
            return f"{text}: or drop {'; '.join(dropped)}; or take fewer --seeds"
    return f"{text}: or take fewer --seeds, or smaller --hidden-sizes"


def _only(plan: Plan, indices: Sequence[int]) -> Plan:
    return replace(
        plan,
        variants=tuple(plan.variants[i] for i in indices),
        speeds=tuple(plan.speeds[i] for i in indices),
    )


def write_plan(plan: Plan, folder: Path) -> None:
    content = {"format": FORMAT, "version": VERSION} | plan_to_json(plan)
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / PLAN_FILE, lambda new: new.write_text(text, encoding="utf-8"))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    variants = [asdict(c) | {"config": config_to_json(c.config)} for c in plan.variants]
    return asdict(plan) | {"variants": variants}


def read_plan(folder: Path) -> Plan:
    path = folder / PLAN_FILE
    if not path.is_file():
        raise ValueError(
            f"a comparison must be a folder that `highrank compare` made, got {folder}"
        )
    content = read_json(path)
    try:
        if content.pop("format") != FORMAT or content.pop("version") != VERSION:
            raise ValueError(f"its format must be {FORMAT!r}, version {VERSION}")
        variants = [
            Variant(**{**variant, "config": config_from_json(variant["config"])})
            for variant in content.pop("variants")
        ]
        # What is left is plain.
        return replace(from_json(Plan, content | {"variants": []}), variants=tuple(variants))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} must be the plan of a comparison: {error}") from None
