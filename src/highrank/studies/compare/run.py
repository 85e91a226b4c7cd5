"""One run of a variant: trained in slices, measured after equal tokens and after equal time.

Everything that a run has come to is in its `metrics.jsonl`, and the checkpoint has the same lines:
a comparison that is killed resumes where each run was, and a report needs no model.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.components import mixture_use
from highrank.analysis.log_probs import matrix_log_probs
from highrank.analysis.rank import measure_ranks
from highrank.analysis.svd import singular_values
from highrank.evaluation.cache import with_cache
from highrank.evaluation.search import cache_grid, search_cache
from highrank.evaluation.static import evaluate, score, summed
from highrank.models.language_model import LanguageModel
from highrank.studies.compare.plan import NUM_POINTS, Plan, Regime
from highrank.studies.compare.presets import open_source
from highrank.studies.compare.record import RunState
from highrank.training.session import open_session
from highrank.training.signals import Stopped
from highrank.training.trainer import Diverged

# Validations are at √2, 2, 2√2 … times and fractions of the tokens that are compared.
FACTOR = 2**0.5
# Tokens of valid on which the cache's settings are searched for.
SEARCH_TOKENS = 10_000
# Contexts of valid after which ranks are measured, and how many are read at once.
NUM_CONTEXTS, WINDOW = 500, 100
RANKS = ("numerical_rank_float32", "effective_rank_1e-2", "effective_rank_1e-3")


class VariantRun:
    """A run of a variant, open to be trained."""

    def __init__(self, plan: Plan, folder: Path, index: int, seed: int) -> None:
        self.plan, self.variant = plan, plan.variants[index]
        self.corpus = open_source(plan.corpus, plan.max_tokens)
        self.run = open_session(
            self.variant.run_config(seed),
            self.corpus,
            plan.run_folder(folder, index, seed),
            device=plan.device,
        )
        lines = self.run.log.read()
        self.marks = {line["regime"] for line in lines if line["event"] == "mark"}
        self.events = {line["event"] for line in lines}
        tokens = [line["tokens"] for line in lines if line["event"] == "epoch"]
        self.validated = max(tokens, default=0)
        self.slices = [line for line in lines if line["event"] == "slice"]

    def advance(self, cpu_seconds: float) -> RunState:
        """Train for about so long, and measure what is due. Raises `Stopped` if a signal came."""
        try:
            state = self._advance(self.run.clock.cpu_seconds + cpu_seconds)
        except Diverged as error:
            state = self._note_divergence(error)
        self._note_slice()
        if self.run.stop_signal is not None:
            raise Stopped(self.run.stop_signal)
        return state

    def close(self) -> None:
        """Let go of the run's folder."""
        self.run.close()

    def _note_slice(self) -> None:
        """Note what was trained since the last slice, in a turn that was killed, too."""
        clock = self.run.clock
        now = {
            "tokens": self.run.num_tokens,
            "cpu_seconds": clock.cpu_seconds,
            "seconds": clock.window_seconds,
        }
        new = {name: now[name] - sum(line[name] for line in self.slices) for name in now}
        if new["tokens"] > 0:
            self.run.note(event="slice", **new)
            self.run.save()
            self.slices.append(new)

    def _advance(self, limit: float) -> RunState:
        if "diverged" in self.events:
            return RunState.DIVERGED
        while self._is_training():
            if (due := self._due()) is not None:
                self._mark(due)
            elif self.run.clock.cpu_seconds >= limit:
                return RunState.UNFINISHED
            else:
                self.run.go(
                    pause_when=lambda: self._must_pause(limit), validate_when=self._is_point_due
                )
                if self.run.stop_signal is not None:
                    return RunState.UNFINISHED
        if "analysis" not in self.events:
            self._analyse()
        return RunState.FINISHED

    def _is_training(self) -> bool:
        return not set(self.plan.regimes) <= self.marks

    def _due(self) -> Regime | None:
        """The regime whose tokens, or whose time, the run has reached."""
        run, plan = self.run, self.plan
        if Regime.TOKENS not in self.marks and run.num_tokens >= plan.num_tokens:
            return Regime.TOKENS
        if plan.cpu_seconds is None or Regime.TIME in self.marks:
            return None
        return Regime.TIME if run.clock.cpu_seconds >= plan.cpu_seconds else None

    def _must_pause(self, limit: float) -> bool:
        return self._due() is not None or self.run.clock.cpu_seconds >= limit

    def _is_point_due(self) -> bool:
        tokens = self.run.num_tokens
        if tokens < next_point(self.plan.num_tokens, self.validated):
            return False
        self.validated = tokens
        return True

    def _mark(self, regime: Regime) -> None:
        """Measure the best model so far on test and on as many training tokens as valid has."""
        run = self.run
        if run.validated_step != run.trainer.num_steps:
            run.validate()
            self.validated = run.num_tokens
        clock = run.clock
        piece = self.corpus.split("train")[: len(run.valid)]
        with run.best_model() as model:
            test = evaluate(model, self.corpus.split("test"), self.plan.test_batch_size)
            train = evaluate(model, piece, run.config.valid_batch_size)
            more = self._with_cache(model) if self.plan.cache and self.variant.is_control else {}
        run.note(
            event="mark",
            regime=regime,
            step=run.trainer.num_steps,
            tokens=run.num_tokens,
            cpu_seconds=clock.cpu_seconds,
            seconds=clock.window_seconds,
            valid_loss=run.best,
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
        with self.run.best_model() as model:
            ranks = effective_ranks(model, self.run.valid)
            use = mixture_use(model, self.run.valid)
        information = None if use is None else use.specialisation
        self.run.note(event="analysis", specialisation=information, **ranks)
        self.run.save()
        self.events.add("analysis")

    def _note_divergence(self, error: Diverged) -> RunState:
        run = self.run
        run.note(
            event="diverged", step=run.trainer.num_steps, tokens=run.num_tokens, reason=str(error)
        )
        run.save()
        return RunState.DIVERGED


def next_point(num_tokens: int, validated: int) -> int:
    """Where the next validation is: num_tokens · √2^n, the first beyond the last one.

    Args:
        num_tokens: where equal tokens are compared, which is one of the points.
        validated: tokens at the last validation.
    """
    n = -NUM_POINTS
    while (point := round(num_tokens * FACTOR**n)) <= validated:
        n += 1
    return point


@torch.no_grad()
def effective_ranks(
    model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int = NUM_CONTEXTS
) -> dict[str, float | None]:
    """Numerical and ε-effective ranks of log p after the first tokens of a split.

    Args:
        model: in evaluation mode; its head may look back.
    """
    device = next(model.parameters()).device
    first = torch.from_numpy(tokens[:num_contexts].astype(np.int64))[:, None].to(device)  # (T, 1)
    state, rows = model.initial_state(1), []
    for window in first.split(WINDOW):
        read = model.read(window, state)
        state = read.state
        rows.append(model.head.log_prob(read.hidden, **read.past)[:, 0])  # (n, V)
    matrix = torch.cat(rows).float().cpu()  # (T, V)
    # A forbidden token has no finite logarithm.
    matrix = matrix[:, matrix.isfinite().all(0)]
    found = measure_ranks(singular_values(matrix_log_probs(matrix))[-1])
    return {"num_contexts": len(matrix)} | {key: found[key] for key in RANKS}
