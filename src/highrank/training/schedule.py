"""Where a run stands in its stages: the learning rate of a step, when to average, when to stop."""

import math
from collections.abc import Sequence
from typing import Any

from highrank.config import RunConfig, StageConfig


def learning_rate(
    stage: StageConfig, step: int, progress: float, ratio: tuple[int, int] = (1, 1)
) -> float:
    """The stage's rate, times warm-up, times a cosine if it anneals, times the batch's ratio.

    Args:
        step: updates before this one, of the whole run.
        progress: the fraction of the stage that is done.
        ratio: `Batch.lr_ratio`.
    """
    factor = 1.0
    if stage.anneal:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        factor = stage.anneal_to + (1 - stage.anneal_to) * cosine
    if step < stage.warmup_steps:
        factor *= (step + 1) / stage.warmup_steps
    return stage.lr * factor * ratio[0] / ratio[1]


def is_non_monotonic(history: Sequence[float], value: float, n: int) -> bool:
    """Whether a value is worse than the best of all but the last n values before it."""
    return len(history) > n and value > min(history[: len(history) - n])


class Schedule:
    """The stages of a run and what was done of them, in epochs, steps and tokens."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.is_finetuning = False
        self.start_stage()

    def start_stage(self) -> None:
        self.epoch, self.steps, self.tokens = 1, 0, 0
        self.history: list[float] = []
        self.is_stage_over = False

    @property
    def stage(self) -> StageConfig:
        stage = self.config.finetune if self.is_finetuning else self.config.train
        assert stage is not None
        return stage

    @property
    def name(self) -> str:
        return "finetune" if self.is_finetuning else "train"

    @property
    def is_run_over(self) -> bool:
        return self.is_stage_over and (self.is_finetuning or self.config.finetune is None)

    @property
    def is_limit_reached(self) -> bool:
        """Whether the stage has all the steps or tokens that it may have."""
        limits = ((self.steps, self.stage.steps), (self.tokens, self.stage.tokens))
        return any(most is not None and done >= most for done, most in limits)

    @property
    def has_stopped_early(self) -> bool:
        """Whether the last stage is over because validation was no better for a while."""
        has_all_epochs = self.epoch > self.stage.epochs
        return self.is_run_over and not has_all_epochs and not self.is_limit_reached

    def progress(self, epoch_progress: float) -> float:
        """The fraction of the stage that is done: of its epochs, steps or tokens.

        Args:
            epoch_progress: the fraction of the present epoch.
        """
        stage = self.stage
        done = (self.epoch - 1 + epoch_progress) / stage.epochs
        for count, most in ((self.steps, stage.steps), (self.tokens, stage.tokens)):
            if most is not None:
                done = max(done, min(1.0, count / most))
        return done

    def count(self, num_targets: int) -> None:
        """Note an update."""
        self.steps += 1
        self.tokens += num_targets

    def must_average(self, valid_loss: float) -> bool:
        """Whether sgd is to start averaging at the end of this epoch."""
        stage = self.stage
        if stage.optimizer != "sgd":
            return False
        if stage.switch_epoch is not None:
            return self.epoch == stage.switch_epoch
        n = stage.switch_after
        return n is not None and is_non_monotonic(self.history, valid_loss, n)

    def end_epoch(self, valid_loss: float, was_averaging: bool) -> None:
        """Decide, after a whole epoch, whether the stage is over, and begin the next epoch.

        Args:
            was_averaging: whether the validated weights were an average: those are no longer
                compared, unless the stage may stop early.
        """
        stop = self.stage.stop_after
        self.is_stage_over = self.epoch >= self.stage.epochs or (
            stop is not None and is_non_monotonic(self.history, valid_loss, stop)
        )
        if not was_averaging or stop is not None:
            self.history.append(valid_loss)
        self.epoch += 1

    def start_finetuning(self) -> None:
        self.is_finetuning = True
        self.start_stage()

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "config"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        known = self.state_dict()
        if sorted(state) != sorted(known):
            raise ValueError(f"a schedule must have {sorted(known)}, got {sorted(state)}")
        vars(self).update(state)
