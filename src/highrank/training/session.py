"""A run in its folder, open for training, until the end, the budget or a signal."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from highrank.analysis.components import mixture_use
from highrank.build import CheckedRun, build_batches, build_model, check_run
from highrank.config import RunConfig
from highrank.data.corpus import CorpusLike
from highrank.evaluation.static import Evaluation
from highrank.models.language_model import LanguageModel
from highrank.models.weights import load_state, restored, save_state, without_dropout
from highrank.training.budget import Clock, read_clocks, seconds_since
from highrank.training.checkpoint import TrainingFolder
from highrank.training.evaluating import evaluate_in
from highrank.training.log import MetricsLog, SilentLog, is_logged
from highrank.training.outcome import Action, Outcome, Progress, Reason
from highrank.training.schedule import Schedule
from highrank.training.sharding import gathered, shards
from highrank.training.signals import listening
from highrank.training.trainer import Diverged, Trainer
from highrank.training.world import World

SECONDS_BETWEEN_CHECKPOINTS = 300.0
# What a checkpoint has: the parts of a session, and what it counts itself.
PARTS = ("trainer", "batches", "schedule", "clock")
COUNTERS = (
    "best",
    "best_state",
    "epoch_loss",
    "epoch_tokens",
    "num_tokens",
    "validated_step",
    "validated_tokens",
    "valid_loss",
    "step_loss",
    "step_tokens",
)


def open_session(
    config: RunConfig, corpus: CorpusLike, folder: Path, device: str = "cpu", **options: Any
) -> "Session":
    """A `Session` of a configuration that is checked first."""
    return Session(check_run(config, corpus, device), folder, **options)


class Session:
    """A run in its folder: a trainer, its batches, its schedule, its clock, its log."""

    def __init__(
        self,
        checked: CheckedRun,
        folder: Path,
        *,
        budget: float | None = None,
        world: World | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Args:
        folder: is made, or resumed if it has a checkpoint.
        budget: seconds of all sessions, without the test. Schedules then follow the clock, so that
            the numbers depend on the machine's speed. A resumed run keeps the one it had unless it
            is given another.
        world: the processes that train together.
        on_event: is given each line of metrics.jsonl.
        """
        config, corpus = checked.config, checked.corpus
        self.config, self.corpus, self.folder = config, corpus, folder
        self.world = World.current() if world is None else world
        self.valid = corpus.split("valid")
        self.clock, self.schedule = Clock(len(self.valid)), Schedule(config)
        self.on_progress, self.on_event = on_progress, on_event
        self.files = TrainingFolder(folder, config, corpus, self.world)
        state = self.files.read_checkpoint(checked.device)
        own, eos = self.world.columns(config.batch), corpus.vocabulary.eos
        self.batches = build_batches(config, corpus.split("train"), checked.device, own, eos)
        self.trainer = self._make_trainer(checked)
        self.clock.add_preparation(*self.files.fit(self.model, corpus))
        # Of the best validation; without weights before the first one.
        self.best, self.best_state = math.inf, dict[str, torch.Tensor]()
        self.num_tokens, self.validated_step, self.validated_tokens = 0, -1, 0
        self.valid_loss: float | None = None
        # Of the epoch, and of the steps since the last line of the log.
        self.epoch_loss, self.epoch_tokens, self.step_loss, self.step_tokens = 0.0, 0, 0.0, 0
        self.stop_signal: int | None = None
        if state is None:
            self.log.restore("")
        else:
            self._resume(state)
        if budget is not None:
            self.clock.set_budget(budget)
        self.files.record(corpus)

    @property
    def model(self) -> LanguageModel:
        return cast(LanguageModel, self.trainer.model)

    @property
    def log(self) -> MetricsLog | SilentLog:
        return self.files.log

    @property
    def progress(self) -> float:
        """The fraction of the stage that is done: of its epochs, steps, tokens or time."""
        return max(self.schedule.progress(self.batches.progress), self.clock.progress())

    @property
    def train_loss(self) -> float:
        """Mean loss of this epoch's tokens so far, with dropout."""
        return self.epoch_loss / max(1, self.epoch_tokens)

    def go(
        self,
        pause_when: Callable[[], bool] = lambda: False,
        validate_when: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Train until the end. Raises `Diverged` with the step and the last good checkpoint.

        Args:
            pause_when: is asked before each window; the run may then be continued, or resumed.
            validate_when: is asked before each window whether to validate also within an epoch.
        """
        with listening(self._note_signal):
            reason = self._train(pause_when, validate_when)
            # A scheduler and torchrun may each send a signal: the second must not end this.
            self.save()
        return Outcome(
            reason=reason,
            best_valid_loss=self.best,
            num_tokens=self.num_tokens,
            seconds=self.clock.seconds,
        )

    @contextmanager
    def best_model(self) -> Iterator[LanguageModel]:
        """The model with its best weights so far, in evaluation mode; on exit, the present ones."""
        with restored(self.model), without_dropout(self.model):
            if self.best_state:
                load_state(self.model, self.best_state)
            with gathered(self.model):
                yield self.model

    def close(self) -> None:
        """Let go of the folder."""
        self.log.close()

    def note(self, **event: Any) -> None:
        self.log.write(**event)
        if self.on_event is not None and self.world.is_first:
            self.on_event(event)

    def save(self) -> None:
        state = {name: getattr(self, name).state_dict() for name in PARTS}
        state |= {name: getattr(self, name) for name in COUNTERS}
        self.files.save(state)

    def _make_trainer(self, checked: CheckedRun) -> Trainer:
        """A trainer as it is before the first step: the seed decides its weights."""
        config, world = self.config, self.world
        torch.manual_seed(config.seed)
        counts = checked.corpus.token_counts
        model = build_model(config, len(checked.corpus.vocabulary), counts).to(checked.device)
        world.share_model(model, config.seed)
        return Trainer(
            model,
            config.train,
            micro_batch_size=config.batch.micro_batch_size,
            precision=config.precision,
            world=world,
        )

    def _resume(self, state: dict[str, Any]) -> None:
        with self.files.explaining_foreign_checkpoints():
            self.schedule.load_state_dict(state["schedule"])
            self.trainer.stage = self.schedule.stage
            for name in PARTS:
                getattr(self, name).load_state_dict(state[name])
            for name in COUNTERS:
                setattr(self, name, state[name])
            self.best_state = shards(self.best_state, save_state(self.model))
            self.log.restore(state["metrics"])
        if self.valid_loss is not None:
            self.files.save_best(self.best_state)

    def _train(self, pause_when: Callable[[], bool], validate_when: Callable[[], bool]) -> Reason:
        saved, start = time.monotonic(), time.perf_counter()
        self.clock.start_session()
        if self.trainer.num_steps == 0:
            self.save()

        def decide() -> tuple[Action, float, bool]:
            action = self._next_action(start, pause_when, validate_when)
            is_old = time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS
            return action, self.progress, is_old

        while True:
            if self.schedule.is_run_over:
                return Reason.NO_BETTER if self.schedule.has_stopped_early else Reason.FINISHED
            if self.schedule.is_stage_over:
                self._start_finetuning()
            # The first process decides: clocks differ.
            action, progress, is_checkpoint_old = self.world.first(decide)
            match action:
                case Action.END:
                    return Reason.OUT_OF_TIME
                case Action.PAUSE:
                    return Reason.PAUSED
                case Action.VALIDATE | Action.VALIDATE_AND_END:
                    is_last = action is Action.VALIDATE_AND_END
                    if not self.validate(is_last):
                        return Reason.INTERRUPTED
                    saved = time.monotonic()
                    if is_last:
                        return Reason.OUT_OF_TIME
                case Action.STEP:
                    self._step(progress)
                    if self.world.any(self.stop_signal is not None):
                        return Reason.INTERRUPTED
                    if is_checkpoint_old:
                        self.save()
                        saved = time.monotonic()

    def _next_action(
        self, start: float, pause_when: Callable[[], bool], validate_when: Callable[[], bool]
    ) -> Action:
        is_out_of_time = self.clock.is_over()
        is_validated = self.trainer.num_steps == self.validated_step
        if is_out_of_time and is_validated:
            return Action.END
        # Not of a run that has ended: opened again, it keeps its time.
        self.clock.add_rest(time.perf_counter() - start)
        if is_out_of_time:
            return Action.VALIDATE_AND_END
        every = self.config.validate_every
        is_due = every is not None and self.num_tokens - self.validated_tokens >= every
        is_over = self.batches.is_epoch_over or self.schedule.is_limit_reached
        if is_over or is_due or validate_when():
            return Action.VALIDATE
        return Action.PAUSE if pause_when() else Action.STEP

    def _start_finetuning(self) -> None:
        """Continue from the best weights, with a fresh optimiser and a fresh history."""
        self.schedule.start_finetuning()
        load_state(self.model, self.best_state)
        self.trainer.start_stage(self.schedule.stage)
        self._start_epoch()
        self.note(event="finetune", step=self.trainer.num_steps)

    def _start_epoch(self) -> None:
        self.batches.start_epoch()
        self.epoch_loss, self.epoch_tokens = 0.0, 0

    def _step(self, progress: float) -> None:
        start = read_clocks()
        batch = next(self.batches)
        self.clock.data_seconds += seconds_since(start)[0]
        try:
            loss = self.trainer.step(batch, progress)
        except Diverged as error:
            raise self._diverged(self.trainer.num_steps + 1, str(error)) from None
        tokens = self.trainer.num_targets
        elapsed, cpu, own = seconds_since(start)
        # Processes that train together also wait for each other.
        self.clock.add_window(tokens, elapsed, cpu, own if self.world.size == 1 else None)
        self.schedule.count(tokens)
        self.num_tokens += tokens
        self.epoch_loss += loss * tokens
        self.epoch_tokens += tokens
        self.step_loss += loss * tokens
        self.step_tokens += tokens
        if is_logged(self.trainer.num_steps):
            loss = self.step_loss / self.step_tokens
            self.note(event="step", **self._position(), train_loss=loss, **self._spent())
            self.step_loss, self.step_tokens = 0.0, 0
        self._show()

    def _position(self) -> dict[str, Any]:
        return {
            "stage": self.schedule.name,
            "epoch": self.schedule.epoch,
            "step": self.trainer.num_steps,
            "progress": self.progress,
        }

    def _spent(self) -> dict[str, Any]:
        return {
            "num_components": self.model.head.num_components,
            "tokens": self.num_tokens,
            **self.clock.spent(),
        }

    def _diverged(self, step: int, reason: str) -> Diverged:
        stage = self.schedule.name
        return Diverged(
            f"the run diverged at step {step} ({stage} epoch {self.schedule.epoch}): {reason}. "
            f"The last good checkpoint is {self.files.checkpoint_path}.",
            advice="Try a new run with a smaller learning rate: "
            f"--{stage}.lr {self.schedule.stage.lr / 3:.2g}",
        )

    def validate(self, is_last: bool = False) -> bool:
        """Validate, take note, save. Returns False if a signal came in between.

        Args:
            is_last: whether the budget ends with it.
        """
        start = time.monotonic()
        measured = self._measure()
        if measured is None:
            return False
        valid, use = measured
        if not math.isfinite(valid.nats):
            raise self._diverged(self.trainer.num_steps, f"the loss on valid is {valid.nats}")
        self.clock.add_validation(time.monotonic() - start)
        self.valid_loss, self.validated_step = valid.nats, self.trainer.num_steps
        self.validated_tokens = self.num_tokens
        if is_last:
            self.clock.end()
        self.note(
            event="epoch",
            **self._position(),
            train_loss=self.train_loss,
            valid_loss=valid.nats,
            valid_perplexity=valid.perplexity,
            **use,
            is_averaging=self.trainer.average is not None,
            **self._spent(),
        )
        # Before the next epoch begins with a training loss of its own.
        self._show()
        self._keep_if_best(valid.nats)
        if self.batches.is_epoch_over:
            self._end_epoch(valid.nats)
        if self.schedule.is_limit_reached:
            self.schedule.is_stage_over = True
        self.save()
        return is_last or not self.world.any(self.stop_signal is not None)

    def _measure(self) -> tuple[Evaluation, dict[str, float]] | None:
        """The loss on valid and what the components do there; None if a signal came.

        Of the averaged weights, where there is an average.
        """
        with self.trainer.averaged(), gathered(self.model):
            size, end = self.config.valid_batch_size, self.corpus.sentence_end
            check = self._stop_if_interrupted
            try:
                valid = evaluate_in(self.world, self.model, self.valid, size, check, end)
            except KeyboardInterrupt:
                return None
            self.model.eval()
            use = mixture_use(self.model, self.valid) if math.isfinite(valid.nats) else None
        return valid, {} if use is None else asdict(use)

    def _stop_if_interrupted(self, *_: Any) -> None:
        # All processes read as many windows.
        if self.world.any(self.stop_signal is not None):
            raise KeyboardInterrupt

    def _keep_if_best(self, valid_loss: float) -> None:
        if valid_loss >= self.best:
            return
        self.best = valid_loss
        with self.trainer.averaged():
            self.best_state = {k: v.clone() for k, v in save_state(self.model).items()}
        self.files.save_best(self.best_state)

    def _end_epoch(self, valid_loss: float) -> None:
        was_averaging = self.trainer.average is not None
        if not was_averaging and self.schedule.must_average(valid_loss):
            self.trainer.start_averaging()
        self.schedule.end_epoch(valid_loss, was_averaging)
        self._start_epoch()

    def _note_signal(self, number: int) -> None:
        self.stop_signal = number

    def _show(self) -> None:
        if self.on_progress is None or not self.world.is_first:
            return
        self.on_progress(
            Progress(
                stage=self.schedule.name,
                epoch=self.schedule.epoch,
                step=self.trainer.num_steps,
                fraction=self.progress,
                tokens_per_second=self.clock.speed,
                train_loss=self.train_loss,
                valid_loss=self.valid_loss,
            )
        )
