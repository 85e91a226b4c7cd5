"""The loop: windows, epochs, stages and checkpoints, until the end, the budget or a signal."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.build import build_model, check_config, check_size
from highrank.config import RunConfig
from highrank.data.batches import Streams
from highrank.data.corpus import CorpusLike, split_sha256
from highrank.files import clear_temporaries
from highrank.run import (
    CHECKPOINT_FILE,
    FILES,
    METRICS_FILE,
    MODEL_FILE,
    check_same_config,
    config_from_json,
    config_to_json,
    prepare_folder,
    read_counts,
    record_corpus,
)
from highrank.training.budget import Clock
from highrank.training.checkpoint import load_checkpoint, save_checkpoint, save_model
from highrank.training.log import MetricsLog, is_logged
from highrank.training.signals import listening
from highrank.training.trainer import Diverged, Trainer

SECONDS_BETWEEN_CHECKPOINTS = 300.0
# Enough of a log to find out whether the run had begun.
FIRST_BYTES = 10_000
# What a run counts, besides its trainer and its clock.
COUNTERS = (
    "num_tokens",
    "validated_step",
    "validated_tokens",
    "valid_loss",
    "step_loss",
    "step_tokens",
)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a progress bar shows."""

    stage: str
    epoch: int
    step: int
    fraction: float
    """Of the stage that is done."""
    tokens_per_second: float | None
    """Of training, over the last windows; None before there were two in this session."""
    train_loss: float
    """Mean of the epoch's tokens so far."""
    valid_loss: float | None
    """The last one."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: str
    """"finished", "out of time", "interrupted" or "paused"."""
    best_valid_loss: float
    num_tokens: int
    """Trained on, over all epochs."""
    seconds: float
    """Spent, over all sessions."""


class Run:
    """A run in its folder: a trainer, its clock, its log and its checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        corpus: CorpusLike,
        folder: Path,
        *,
        budget: float | None = None,
        device: str = "cpu",
        on_progress: Callable[[Progress], None] | None = None,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Args:
        folder: is made, or resumed if it has a checkpoint.
        budget: seconds of all sessions, without the test. Schedules then follow the clock, so that
            the numbers depend on the machine's speed. A resumed run keeps the one it had unless it
            is given another.
        on_event: is given each line of metrics.jsonl.
        """
        train, self.valid = corpus.split("train"), corpus.split("valid")
        check_config(config, len(train), len(self.valid))
        check_size(config, len(corpus.vocabulary))
        prepare_folder(folder, config, corpus.vocabulary, train)
        self.folder, self.clock = folder, Clock(budget, len(self.valid))
        self.on_progress, self.on_event = on_progress, on_event
        self.log = MetricsLog(folder / METRICS_FILE)
        clear_temporaries(folder / name for name in FILES)
        self.corpus_sha256 = {name: split_sha256(corpus, name) for name in ("train", "valid")}
        state = self._read_checkpoint(config)
        self.trainer = make_trainer(config, len(corpus.vocabulary), train, device, folder)
        self.num_tokens, self.validated_step, self.validated_tokens = 0, -1, 0
        self.valid_loss: float | None = None
        # Of the steps since the last line of the log.
        self.step_loss, self.step_tokens = 0.0, 0
        self.stop_signal: int | None = None
        if state is None:
            self.log.restore("")
        else:
            self._resume(state)
        record_corpus(folder, corpus)

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / CHECKPOINT_FILE

    @property
    def progress(self) -> float:
        """The fraction of the stage that is done: of its epochs, or of the time."""
        return max(self.trainer.epoch_progress, self.clock.progress())

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
        self.save()
        trainer = self.trainer
        return Outcome(
            reason=reason,
            best_valid_loss=trainer.best,
            num_tokens=self.num_tokens,
            seconds=self.clock.seconds,
        )

    def close(self) -> None:
        """Let go of the folder."""
        self.log.close()

    def note(self, **event: Any) -> None:
        self.log.write(**event)
        if self.on_event is not None:
            self.on_event(event)

    def save(self) -> None:
        state = {
            "trainer": self.trainer.state_dict(),
            "clock": self.clock.state_dict(),
            "config": config_to_json(self.trainer.config),
            "metrics": self.log.text,
            "corpus_sha256": self.corpus_sha256,
            **{name: getattr(self, name) for name in COUNTERS},
        }
        save_checkpoint(self.checkpoint_path, state)

    def _read_checkpoint(self, config: RunConfig) -> dict[str, Any] | None:
        """The checkpoint, of this configuration and corpus; None if the run has not begun."""
        path = self.checkpoint_path
        if not path.exists():
            if (self.folder / MODEL_FILE).exists() or self.log.whole_lines(FIRST_BYTES):
                # To begin anew would lose what there is.
                raise ValueError(f"{path} is missing: the run cannot be resumed")
            return None
        state = load_checkpoint(path)
        check_same_config(self.folder, _config_of(state.get("config"), path), config)
        for name, digest in self.corpus_sha256.items():
            if state.get("corpus_sha256", {}).get(name) != digest:
                raise ValueError(
                    "the corpus must be the one that the run began with, got another "
                    f"{name} split: prepare {config.corpus} as it was"
                )
        return state

    def _resume(self, state: dict[str, Any]) -> None:
        path = self.checkpoint_path
        try:
            self.trainer.load_state_dict(state["trainer"])
            self.clock.load_state_dict(state["clock"])
            for name in COUNTERS:
                setattr(self, name, state[name])
            text = state["metrics"]
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path} must be a checkpoint of this run, got {reason}") from None
        self.log.restore(text)
        if self.valid_loss is not None:
            save_model(self.folder / MODEL_FILE, self.trainer.best_state)

    def _train(self, pause_when: Callable[[], bool], validate_when: Callable[[], bool]) -> str:
        trainer, saved, start = self.trainer, time.monotonic(), time.perf_counter()
        self.clock.start_session()
        if trainer.step == 0:
            self.save()
        while True:
            if trainer.is_stage_over:
                if trainer.is_finetuning or trainer.config.finetune is None:
                    return "finished"
                trainer.start_finetuning(trainer.best)
                self.note(event="finetune", step=trainer.step)
            is_out_of_time = self.clock.is_over()
            if is_out_of_time and trainer.step == self.validated_step:
                return "out of time"
            # Not of a run that has ended: opened again, it keeps its time.
            self.clock.add_rest(time.perf_counter() - start)
            is_due = self._is_validation_due or validate_when()
            if is_out_of_time or trainer.is_epoch_over or is_due:
                if not self.validate(is_out_of_time):
                    return "interrupted"
                saved = time.monotonic()
                if is_out_of_time:
                    return "out of time"
                continue
            if pause_when():
                return "paused"
            self._train_window()
            if self.stop_signal is not None:
                return "interrupted"
            if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                self.save()
                saved = time.monotonic()

    @property
    def _is_validation_due(self) -> bool:
        every = self.trainer.config.validate_every
        return every is not None and self.num_tokens - self.validated_tokens >= every

    def _train_window(self) -> None:
        trainer = self.trainer
        start, cpu_start = time.monotonic(), time.process_time()
        try:
            tokens = trainer.train_window(self.progress)
        except Diverged as error:
            raise self._diverged(trainer.step + 1, str(error)) from None
        elapsed = time.monotonic() - start
        self.clock.add_window(tokens, elapsed, time.process_time() - cpu_start)
        self.num_tokens += tokens
        self._note_step(tokens)
        self._show()

    def _note_step(self, tokens: int) -> None:
        """Note the mean loss of the steps since the last line, if this one has a line."""
        trainer = self.trainer
        self.step_loss += trainer.window_loss * tokens
        self.step_tokens += tokens
        if not is_logged(trainer.step):
            return
        self.note(
            event="step",
            stage=self._stage,
            epoch=trainer.epoch,
            step=trainer.step,
            progress=self.progress,
            train_loss=self.step_loss / self.step_tokens,
            num_components=trainer.num_components,
            tokens=self.num_tokens,
            seconds=round(self.clock.seconds, 3),
            cpu_seconds=round(self.clock.cpu_seconds, 3),
        )
        self.step_loss, self.step_tokens = 0.0, 0

    @property
    def _stage(self) -> str:
        return "finetune" if self.trainer.is_finetuning else "train"

    def _diverged(self, step: int, reason: str) -> Diverged:
        trainer, stage = self.trainer, self._stage
        return Diverged(
            f"the run diverged at step {step} ({stage} epoch {trainer.epoch}): {reason}. "
            f"The last good checkpoint is {self.checkpoint_path}.",
            advice="Try a new run with a smaller learning rate: "
            f"--{stage}.lr {trainer.stage.lr / 3:.2g}",
        )

    def validate(self, is_out_of_time: bool = False) -> bool:
        """Validate, take note, save. Returns False if a signal came in between."""
        start, trainer = time.monotonic(), self.trainer
        try:
            valid = trainer.validate(self.valid, on_progress=lambda *_: self._stop_if_interrupted())
        except KeyboardInterrupt:
            return False
        if not math.isfinite(valid.nats):
            raise self._diverged(trainer.step, f"the loss on valid is {valid.nats}")
        use = trainer.mixture_use(self.valid)
        self.clock.add_validation(time.monotonic() - start)
        self.valid_loss, self.validated_step = valid.nats, trainer.step
        self.validated_tokens = self.num_tokens
        if is_out_of_time:
            self.clock.end()
        self.note(
            event="epoch",
            stage=self._stage,
            epoch=trainer.epoch,
            step=trainer.step,
            progress=self.progress,
            train_loss=trainer.train_loss,
            valid_loss=valid.nats,
            valid_perplexity=valid.perplexity,
            num_components=trainer.num_components,
            **use,
            is_averaging=trainer.average is not None,
            tokens=self.num_tokens,
            seconds=round(self.clock.seconds, 3),
            cpu_seconds=round(self.clock.cpu_seconds, 3),
        )
        # Before the next epoch begins with a training loss of its own.
        self._show()
        if trainer.note_validation(valid.nats):
            save_model(self.folder / MODEL_FILE, trainer.best_state)
        if trainer.is_epoch_over:
            trainer.end_epoch(valid.nats)
        self.save()
        return self.stop_signal is None or is_out_of_time

    def _note_signal(self, number: int) -> None:
        self.stop_signal = number

    def _stop_if_interrupted(self) -> None:
        if self.stop_signal is not None:
            raise KeyboardInterrupt

    def _show(self) -> None:
        if self.on_progress is None:
            return
        trainer = self.trainer
        self.on_progress(
            Progress(
                stage=self._stage,
                epoch=trainer.epoch,
                step=trainer.step,
                fraction=self.progress,
                tokens_per_second=self.clock.speed,
                train_loss=trainer.train_loss,
                valid_loss=self.valid_loss,
            )
        )


def _config_of(values: Any, path: Path) -> RunConfig:
    """The configuration in a checkpoint."""
    try:
        return config_from_json(values)
    except ValueError as error:
        raise ValueError(f"{path} must have a run's configuration: {error}") from None


def make_trainer(
    config: RunConfig, vocab_size: int, train: NDArray[np.integer], device: str, folder: Path
) -> Trainer:
    """A trainer as it is before the first step: the seed decides its weights."""
    torch.manual_seed(config.seed)
    model = build_model(config, vocab_size, read_counts(folder, vocab_size)).to(device)
    return Trainer(config, model, Streams(train, config.batch.batch_size, device))
