"""A comparison before it runs: its variants, their speed, how long each trains, and `plan.json`."""

import json
import math
import os
import shlex
import statistics
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from highrank.build import build_batches, build_model, check_run
from highrank.data.corpus import CorpusLike
from highrank.environment import check_device, set_threads
from highrank.files import from_json, read_json, write_atomically
from highrank.heads.bases.component import components_of
from highrank.presets.dropout import dropout_of, set_dropout
from highrank.progress import OnProgress
from highrank.run.configuration import config_to_json
from highrank.studies.compare.networks import LSTM
from highrank.studies.compare.presets import (
    Comparison,
    base_config,
    is_of_text,
    open_source,
    prepare_source,
)
from highrank.studies.compare.variant import (
    UNTIED,
    Role,
    Variant,
    make_variants,
    parse_spec,
    variant_from_json,
)
from highrank.training.budget import parse_duration, seconds_of_test
from highrank.training.speed import next_batch, time_training
from highrank.training.trainer import Trainer

PLAN_FILE, FORMAT, VERSION = "plan.json", "highrank comparison", 3
# Validations of a run: each has √2 times the tokens of the one before it.
NUM_POINTS = 6
# Fraction of the time for starting, saving and a machine that is slower than it was.
RESERVE = 0.12
# The slowest variant reaches equal tokens before equal time is over.
MARGIN = 0.9
# A budget that is advised has so many times what is needed: speeds are measured anew.
SPARE = 1.15
# Heads that a sceptic asks for; a cache and an n-gram alone need no training of their own.
BASELINES = ("adaptive-softmax", UNTIED)
# With fewer steps nothing has been learned.
FEWEST_STEPS = 150
# More runs at the same time wait for memory rather than for cores.
MOST_JOBS = 4
# Seconds of rank and components at the end of a run: so many, and for each token of the vocabulary.
ANALYSIS_SECONDS, ANALYSIS_PER_TOKEN = 0.5, 4e-4


class Regime(StrEnum):
    """Where runs are compared: after equal tokens, after equal time."""

    TOKENS = "tokens"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class Speed:
    cpu: float
    """CPU seconds of training for each token."""
    wall: float
    """Seconds of training for each token, whatever else the machine was doing."""
    alone: float
    """The same on a machine that does nothing else, which alone decides the plan. On a CPU it is
    the CPU time of the thread that trains, so that a busy machine gives the same plan."""
    valid: float
    """Seconds of a validation, on such a machine."""
    test: float
    """Seconds of a test."""
    analysis: float
    """Seconds of what is measured once, when the run has ended."""

    def fixed(self, num_regimes: int) -> float:
        """Seconds of a run besides training. A regime has a test and a look at training tokens."""
        return NUM_POINTS * self.valid + num_regimes * (self.test + self.valid) + self.analysis


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides a comparison's numbers, and how long it was thought to take."""

    corpus: str
    """Name or path, as `open_source` takes it."""
    max_tokens: int | None
    variants: tuple[Variant, ...]
    speeds: tuple[Speed, ...]
    """One for each variant."""
    seeds: tuple[int, ...]
    equal: tuple[str, ...]
    num_tokens: int
    """Equal tokens are compared here."""
    cpu_seconds: float | None
    """Equal time is compared here; None if it is not."""
    cache: bool
    """Whether the control is also evaluated with a cache and at a temperature."""
    test_batch_size: int
    jobs: int
    threads: int
    """Threads of each job."""
    device: str = "cpu"
    dropout: float | None = None
    """Of all LSTMs, chosen for the tokens that a control reads; None if the recipe has its own."""
    command: str = ""
    """The command that was typed, for the report."""

    @property
    def regimes(self) -> tuple[Regime, ...]:
        return (Regime.TOKENS,) if self.cpu_seconds is None else (Regime.TOKENS, Regime.TIME)

    def control_of(self, variant: Variant) -> Variant:
        """The control of the same network and the same d."""
        family = variant.family
        return next(one for one in self.variants if one.is_control and one.family == family)

    def run_folder(self, folder: Path, index: int, seed: int) -> Path:
        return folder / f"{self.variants[index].name}-seed{seed}"

    def cpu_of(self, index: int) -> float:
        """CPU seconds that a run of this variant trains for, as far as one knows."""
        return max(self.num_tokens * self.speeds[index].cpu, self.cpu_seconds or 0.0)

    def seconds_of(self, index: int) -> float:
        """Seconds of a run of this variant, with its validations and tests."""
        speed = self.speeds[index]
        ratio = speed.alone / speed.cpu
        return self.cpu_of(index) * ratio + speed.fixed(len(self.regimes))

    @property
    def seconds(self) -> float:
        """About how long the comparison takes on a machine that does nothing else."""
        each = sum(self.seconds_of(index) for index in range(len(self.variants)))
        return each * len(self.seeds) / self.jobs / (1 - RESERVE)

    @property
    def evaluating(self) -> float:
        """The fraction of a run's time that is validation and test, over all variants."""
        fixed = sum(speed.fixed(len(self.regimes)) for speed in self.speeds)
        return fixed / sum(self.seconds_of(index) for index in range(len(self.variants)))

    @property
    def waiting(self) -> float:
        """Seconds for each second of a quiet machine, while speeds were measured."""
        return statistics.median(one.wall / one.alone for one in self.speeds)


class BudgetTooSmall(ValueError):
    """A budget in which nothing can be learned.

    Args:
        message: for the user.
        enough: a budget that suffices, as it is typed.
    """

    def __init__(self, message: str, enough: str) -> None:
        super().__init__(message)
        self.enough = enough

    def advice(self, arguments: list[str]) -> str:
        """The message with a command that fits.

        Args:
            arguments: of the command that was typed.
        """
        kept = [text for text in arguments if not text.startswith("--budget=")]
        if "--budget" in kept:
            place = kept.index("--budget")
            del kept[place : place + 2]
        command = shlex.join(["highrank", *kept, "--budget", self.enough])
        return (
            f"{self}. This fits: {command}\n"
            "Or take fewer --heads or --seeds, or smaller --hidden-sizes."
        )


def make_plan(
    comparison: Comparison, on_progress: OnProgress = lambda fraction, text: None
) -> Plan:
    """Variants of equal size, the speed of each, and the budget divided among them.

    Args:
        comparison: its corpus may be a text, which is prepared on the way.
    """
    comparison.check()
    for head in comparison.heads:
        parse_spec(head)
    check_device(comparison.device)
    budget, jobs = parse_duration(comparison.budget), _num_jobs(comparison)
    set_threads(1 if jobs > 1 else comparison.threads)
    comparison = replace(comparison, corpus=prepare_source(comparison.corpus, on_progress))
    corpus = open_source(comparison.corpus, comparison.max_tokens)
    train, vocab_size = corpus.split("train"), len(corpus.vocabulary)
    base = base_config(comparison, len(train))
    more = BASELINES if comparison.baselines else ()
    variants = make_variants(
        base,
        (*comparison.heads, *more),
        comparison.components,
        comparison.embedding,
        vocab_size,
        corpus.token_counts,
        is_equal="parameters" in comparison.equal,
        models=comparison.models,
    )
    speeds = []
    for index, variant in enumerate(variants):
        on_progress(index / len(variants), f"speed of {variant.label}")
        check_run(variant.config, corpus, comparison.device)
        speeds.append(measure_speed(variant, corpus, comparison))
    plan = Plan(
        corpus=comparison.corpus,
        max_tokens=comparison.max_tokens,
        variants=variants,
        speeds=tuple(speeds),
        seeds=tuple(range(comparison.seeds)),
        equal=comparison.equal,
        num_tokens=0,
        cpu_seconds=None,
        cache=comparison.baselines,
        test_batch_size=comparison.test_batch_size,
        jobs=jobs,
        threads=torch.get_num_threads(),
        device=comparison.device,
    )
    batches = build_batches(base, train, sentence_end=corpus.vocabulary.eos)
    plan = divide_budget(plan, budget, FEWEST_STEPS * batches.mean_targets)
    return choose_dropout(plan, len(train)) if is_of_text(comparison) else plan


def _num_jobs(comparison: Comparison) -> int:
    """One for each core, unless a run is to have several, or a device of its own."""
    if comparison.jobs is not None:
        return comparison.jobs
    if comparison.threads is not None or comparison.device != "cpu":
        return 1
    return min(MOST_JOBS, max(1, len(available_cores())))


def available_cores() -> list[int]:
    """The cores that this process may use; empty where the system does not say."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return []


def measure_speed(variant: Variant, corpus: CorpusLike, comparison: Comparison) -> Speed:
    """Train a fresh model for a moment, and evaluate it."""
    torch.manual_seed(0)
    is_cpu = comparison.device == "cpu"
    clock = time.thread_time if is_cpu else time.monotonic
    config, vocab_size, device = variant.config, len(corpus.vocabulary), comparison.device
    model = build_model(config, vocab_size, corpus.token_counts).to(device)
    for component in components_of(model):
        component.fit(corpus.split("train"), corpus.token_counts)
    eos, end = corpus.vocabulary.eos, corpus.sentence_end
    batches = build_batches(config, corpus.split("train"), device, sentence_end=eos)
    trainer = Trainer(model, config.train)
    tokens, wall, cpu, thread = time_training(trainer, lambda: next_batch(batches))
    valid = seconds_of_test(model, corpus.split("valid"), config.valid_batch_size, clock, end)
    test = seconds_of_test(model, corpus.split("test"), comparison.test_batch_size, clock, end)
    if comparison.baselines and variant.is_control:
        # Cache and temperature read one stream, the latter with the whole vocabulary.
        test += 6 * seconds_of_test(model, corpus.split("test"), 1, clock)
    return Speed(
        cpu=cpu / tokens,
        wall=wall / tokens,
        alone=(thread if is_cpu else wall) / tokens,
        valid=valid,
        test=test,
        analysis=ANALYSIS_SECONDS + ANALYSIS_PER_TOKEN * vocab_size,
    )


def divide_budget(plan: Plan, budget: float, fewest_tokens: int) -> Plan:
    """Give each run as many tokens, and as much time, as the budget allows.

    Args:
        budget: seconds.
        fewest_tokens: below this, nothing can be learned.
    """
    needed, found = budget, _fill(plan, budget)
    while found.num_tokens < fewest_tokens:
        needed *= 1.02
        found = _fill(plan, needed)
    if needed > budget:
        message = (
            f"the budget must be at least {needed / 60:.1f}m for {len(plan.variants)} variants of "
            f"{len(plan.seeds)} seeds, got {budget / 60:.1f}m"
        )
        raise BudgetTooSmall(message, f"{math.ceil(needed * SPARE / 60)}m")
    return found


def _fill(plan: Plan, budget: float) -> Plan:
    """The plan that takes this long; without tokens if evaluation alone takes longer."""
    fixed = sum(speed.fixed(2 if "time" in plan.equal else 1) for speed in plan.speeds)
    left = budget * plan.jobs * (1 - RESERVE) / len(plan.seeds) - fixed
    if "time" not in plan.equal:
        per_token = sum(speed.alone for speed in plan.speeds)
        return replace(plan, num_tokens=int(left / per_token), cpu_seconds=None)
    cpu = left / sum(speed.alone / speed.cpu for speed in plan.speeds)
    slowest = max(speed.cpu for speed in plan.speeds)
    return replace(plan, num_tokens=int(MARGIN * cpu / slowest), cpu_seconds=cpu)


def choose_dropout(plan: Plan, num_train: int) -> Plan:
    """One dropout for all LSTMs, by the rule of `highrank train`, and for what the first one reads.

    An untied softmax keeps that of its contexts, which is what it is there for.

    Args:
        num_train: tokens of the training split.
    """
    kinds = [variant.config.model.kind for variant in plan.variants]
    if LSTM not in kinds:
        return plan
    first = kinds.index(LSTM)
    num_tokens = plan.cpu_of(first) / plan.speeds[first].cpu
    dropout = dropout_of(plan.variants[first].config, num_tokens, num_train)

    def dropping(variant: Variant) -> Variant:
        if variant.config.model.kind != LSTM:
            return variant
        given = ["head.dropout"] if variant.role is Role.OTHER_SIZE else []
        return replace(variant, config=set_dropout(variant.config, dropout, given))

    return replace(plan, variants=tuple(map(dropping, plan.variants)), dropout=dropout)


def write_plan(plan: Plan, folder: Path) -> None:
    content = {"format": FORMAT, "version": VERSION} | plan_to_json(plan)
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / PLAN_FILE, lambda new: new.write_text(text, encoding="utf-8"))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    variants = [asdict(v) | {"config": config_to_json(v.config)} for v in plan.variants]
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
        variants = tuple(map(variant_from_json, content.pop("variants")))
        # The rest is plain.
        return replace(from_json(Plan, content | {"variants": []}), variants=variants)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} must be the plan of a comparison: {error}") from None
