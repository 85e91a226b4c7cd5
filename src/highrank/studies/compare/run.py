"""One run of a variant: trained in slices, measured after equal tokens and after equal time.

Everything that a run has come to is in its `metrics.jsonl`, and the checkpoint has the same lines:
a comparison that is killed resumes where each run was, and a report needs no model.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import mixture_use
from highrank.evaluation.cache import with_cache
from highrank.evaluation.search import cache_grid, search_cache
from highrank.evaluation.static import evaluate, score, summed
from highrank.models.language_model import LanguageModel
from highrank.models.weights import load_state, restored
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.rank import effective_ranks
from highrank.studies.compare.source import open_source
from highrank.training.loop import Progress, Run
from highrank.training.signals import Stopped
from highrank.training.trainer import Diverged

# Validations are at √2, 2, 2√2 … times and fractions of the tokens that are compared.
FACTOR = 2**0.5
FIRST_POINT = 10
# Tokens of valid on which the cache's settings are searched for.
SEARCH_TOKENS = 10_000


@dataclass(frozen=True, kw_only=True)
class SliceOutcome:
    index: int
    """Of the variant."""
    seed: int
    state: str
    """"paused", "finished" or "diverged"."""
    tokens: int
    """Of the run so far."""
    cpu_seconds: float


class VariantRun:
    """A run of a variant, open to be trained."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        index: int,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.plan, self.index, self.seed = plan, index, seed
        self.variant = plan.variants[index]
        self.corpus = open_source(plan.corpus, plan.max_tokens)
        self.run = Run(
            self.variant.run_config(seed),
            self.corpus,
            plan.run_folder(folder, index, seed),
            device=plan.device,
            on_progress=on_progress,
        )
        lines = self.run.log.read()
        self.marks = {line["regime"] for line in lines if line["event"] == "mark"}
        self.events = {line["event"] for line in lines}
        tokens = [line["tokens"] for line in lines if line["event"] == "epoch"]
        self.validated = max(tokens, default=0)

    def advance(self, cpu_seconds: float) -> SliceOutcome:
        """Train for about so long, and measure what is due. Raises `Stopped` if a signal came."""
        clock, limit = self.run.clock, self.run.clock.cpu_seconds + cpu_seconds
        before = (self.run.num_tokens, clock.cpu_seconds, clock.window_seconds)
        try:
            state = self._advance(limit)
        except Diverged as error:
            state = self._note_divergence(error)
        tokens, cpu, wall = self.run.num_tokens, clock.cpu_seconds, clock.window_seconds
        if tokens > before[0]:
            spent = {"cpu_seconds": cpu - before[1], "seconds": wall - before[2]}
            self.run.note(event="slice", tokens=tokens - before[0], **spent)
            self.run.save()
        if self.run.stop_signal is not None:
            raise Stopped(self.run.stop_signal)
        return SliceOutcome(
            index=self.index, seed=self.seed, state=state, tokens=tokens, cpu_seconds=cpu
        )

    def close(self) -> None:
        """Let go of the run's folder."""
        self.run.close()

    def _advance(self, limit: float) -> str:
        if "diverged" in self.events:
            return "diverged"
        while self._is_training():
            if (due := self._due()) is not None:
                self._mark(due)
            elif self.run.clock.cpu_seconds >= limit:
                return "paused"
            else:
                self.run.go(
                    pause_when=lambda: self._must_pause(limit), validate_when=self._is_point_due
                )
                if self.run.stop_signal is not None:
                    return "paused"
        if "analysis" not in self.events:
            self._analyse()
        return "finished"

    def _is_training(self) -> bool:
        return not set(self.plan.regimes) <= self.marks

    def _due(self) -> str | None:
        """The regime whose tokens, or whose time, the run has reached."""
        run, plan = self.run, self.plan
        if "tokens" not in self.marks and run.num_tokens >= plan.num_tokens:
            return "tokens"
        if plan.cpu_seconds is None or "time" in self.marks:
            return None
        return "time" if run.clock.cpu_seconds >= plan.cpu_seconds else None

    def _must_pause(self, limit: float) -> bool:
        return self._due() is not None or self.run.clock.cpu_seconds >= limit

    def _is_point_due(self) -> bool:
        tokens = self.run.num_tokens
        if tokens < next_point(self.plan.num_tokens, self.validated):
            return False
        self.validated = tokens
        return True

    def _mark(self, regime: str) -> None:
        """Measure the best model so far on test and on as many training tokens as valid has."""
        run = self.run
        if run.validated_step != run.trainer.step:
            run.validate()
            self.validated = run.num_tokens
        trainer, clock = run.trainer, run.clock
        piece = self.corpus.split("train")[: len(run.valid)]
        with restored(trainer.model):
            load_state(trainer.model, trainer.best_state)
            model = trainer.model
            test = evaluate(model, self.corpus.split("test"), self.plan.test_batch_size)
            train = evaluate(model, piece, trainer.config.valid_batch_size)
            more = self._with_cache(model) if self.plan.cache and self.variant.is_control else {}
        run.note(
            event="mark",
            regime=regime,
            step=trainer.step,
            tokens=run.num_tokens,
            cpu_seconds=clock.cpu_seconds,
            seconds=clock.window_seconds,
            valid_loss=trainer.best,
            test_loss=test.nats,
            train_loss=train.nats,
            **more,
        )
        run.save()
        self.marks.add(regime)

    def _with_cache(self, model: LanguageModel) -> dict[str, Any]:
        """Losses with a neural cache whose settings are searched for on valid."""
        valid, test = self.run.valid, self.corpus.split("test")
        start = time.monotonic()
        grid = cache_grid(theta=(0.1, 0.2, 0.3, 0.5, 0.7, 1.0))
        settings = search_cache(score(model, valid[: SEARCH_TOKENS + 1]), grid).best.settings

        def loss(tokens: NDArray[np.integer]) -> float:
            return summed(with_cache(score(model, tokens), settings)).nats

        return {
            "cache_valid_loss": loss(valid),
            "cache_test_loss": loss(test),
            "cache": {
                "window": settings.window,
                "theta": settings.theta,
                "weight": settings.weight,
                "seconds": time.monotonic() - start,
            },
        }

    def _analyse(self) -> None:
        """Rank and components of the best model, on the validation split."""
        trainer, valid = self.run.trainer, self.run.valid
        with restored(trainer.model):
            load_state(trainer.model, trainer.best_state)
            trainer.model.eval()
            ranks = effective_ranks(trainer.model, valid)
            use = mixture_use(trainer.model, valid)
        information = None if use is None else use.specialisation
        self.run.note(event="analysis", specialisation=information, **ranks)
        self.run.save()
        self.events.add("analysis")

    def _note_divergence(self, error: Diverged) -> str:
        run = self.run
        run.note(event="diverged", step=run.trainer.step, tokens=run.num_tokens, reason=str(error))
        run.save()
        return "diverged"


def next_point(num_tokens: int, validated: int) -> int:
    """Where the next validation is: num_tokens · √2^n, the first beyond the last one.

    Args:
        num_tokens: where equal tokens are compared, which is one of the points.
        validated: tokens at the last validation.
    """
    n = -FIRST_POINT
    while (point := round(num_tokens * FACTOR**n)) <= validated:
        n += 1
    return point
