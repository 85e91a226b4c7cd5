"""What a user asks, and the plan that answers it: variants of equal size, within a budget."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from highrank.build import check_config, check_size
from highrank.config import RunConfig
from highrank.studies.compare.plan import FEWEST_STEPS, REGIMES, Plan, divided
from highrank.studies.compare.source import open_source
from highrank.studies.compare.speed import measure_speed
from highrank.studies.compare.variant import make_variants

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the user asks."""

    corpus: str
    base: RunConfig
    heads: tuple[str, ...]
    components: tuple[int, ...]
    embedding_sizes: tuple[int, ...]
    num_seeds: int = 3
    equal: tuple[str, ...] = ("parameters", "context", "tokens")
    budget: float = 300.0
    """Seconds."""
    max_tokens: int | None = None
    cache: bool = False
    test_batch_size: int = 10
    jobs: int = 1
    threads: int = 1
    device: str = "cpu"

    def check(self) -> None:
        if unknown := set(self.equal) - set(REGIMES):
            raise ValueError(f"equal must be among {', '.join(REGIMES)}, got {sorted(unknown)}")
        if not {"time", "tokens"} & set(self.equal):
            raise ValueError(f"equal must have time or tokens, got {', '.join(self.equal)}")
        if "time" in self.equal and self.device != "cpu":
            raise ValueError(f"equal time must be measured on the cpu, got {self.device}")
        for name in ("num_seeds", "jobs", "threads", "test_batch_size"):
            if (found := getattr(self, name)) < 1:
                raise ValueError(f"{name.replace('_', '-')} must be at least 1, got {found}")
        for name in ("components", "embedding_sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(
                    f"{name} must be whole numbers from 1 on, got {getattr(self, name)}"
                )


def make_plan(question: Question, on_progress: OnProgress | None = None) -> Plan:
    """Variants of equal size, each one's speed, and the budget divided among them."""
    question.check()
    corpus = open_source(question.corpus, question.max_tokens)
    train = corpus.split("train")
    counts = np.bincount(train, minlength=len(corpus.vocabulary)).tolist()
    variants = make_variants(
        question.base,
        question.heads,
        question.components,
        question.embedding_sizes,
        len(corpus.vocabulary),
        counts,
        is_equal="parameters" in question.equal,
    )
    speeds = []
    for index, variant in enumerate(variants):
        if on_progress is not None:
            on_progress(index / len(variants), variant.label)
        check_config(variant.config, len(train), len(corpus.split("valid")))
        check_size(variant.config, len(corpus.vocabulary))
        speeds.append(
            measure_speed(
                variant,
                corpus,
                counts,
                test_batch_size=question.test_batch_size,
                has_cache=question.cache and variant.is_control,
                device=question.device,
            )
        )
    plan = Plan(
        corpus=question.corpus,
        max_tokens=question.max_tokens,
        variants=variants,
        speeds=tuple(speeds),
        seeds=tuple(range(question.num_seeds)),
        equal=question.equal,
        num_tokens=0,
        cpu_seconds=None,
        cache=question.cache,
        test_batch_size=question.test_batch_size,
        jobs=question.jobs,
        threads=question.threads,
        device=question.device,
    )
    batch = question.base.batch
    return divided(plan, question.budget, FEWEST_STEPS * batch.batch_size * batch.bptt)
