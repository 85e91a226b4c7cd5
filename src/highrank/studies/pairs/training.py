"""One model of a study: its training, evaluations and checkpoints.

The same number of steps gives the same numbers, however often it was interrupted.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from highrank.data.pairs.encoded import PairBatches
from highrank.files import from_json
from highrank.integrations.huggingface.pairs.trainable import TrainablePairs
from highrank.progress import OnProgress
from highrank.studies.pairs.corpus import Corpus
from highrank.studies.pairs.scoring import Scores, held_out_nats, score
from highrank.studies.pairs.settings import Settings
from highrank.training.checkpoint import load_checkpoint, save_checkpoint
from highrank.training.signals import Stopped
from highrank.training.trainer import Diverged, Trainer

SECONDS_BETWEEN_CHECKPOINTS = 120.0
# Steps between evaluations, until there are so many of them that this is doubled.
EVERY, NUM_EVALUATIONS = 32, 8


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model with its averaged weights, after some steps."""

    step: int
    seconds: float
    """Time of training, evaluations left out."""
    num_targets: int
    """Target tokens that were read."""
    train_nats: float | None
    """Mean loss of the steps since the point before, smoothed as in training; None at the start."""
    valid_nats: float
    """Mean loss of a target token of valid."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """One model after its training."""

    variant: str
    seed: int
    task: str
    context: int
    """Utterances before a response, of a dialogue."""
    num_parameters: int
    num_components: int
    points: tuple[Point, ...]
    scores: tuple[Scores, ...]
    """At its marks, the last at the end."""

    @property
    def num_steps(self) -> int:
        return self.points[-1].step

    def scores_at(self, step: int) -> Scores:
        return next(found for found in self.scores if found.step == step)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that all models of a study share."""

    settings: Settings
    corpus: Corpus
    tokenizer: Any
    check: Callable[[], None]
    """Called often, where the work may end; raises `Stopped` if it is to."""


class ModelTraining:
    """A model in training.

    Args:
        model: with the head of its variant.
        marks: steps at which it is scored; the last ends the training.
    """

    def __init__(
        self, task: Task, model: Any, variant: str, seed: int, marks: tuple[int, ...]
    ) -> None:
        self.task, self.variant, self.seed, self.marks = task, variant, seed, sorted(set(marks))
        settings = task.settings
        size = model.get_output_embeddings().head.hidden_size
        added = settings.added_lr(size) / settings.rate
        self.model = TrainablePairs(model, settings.label_smoothing, added)
        self.trainer = Trainer(self.model, settings.stage)
        pad = task.tokenizer.pad_token_id
        pairs = task.corpus.encoded["train"]
        self.batches = PairBatches(pairs, settings.batch_tokens, pad=pad, seed=seed)
        self.losses: list[float] = []
        """Losses of the steps since the last evaluation."""
        self.points: list[Point] = []
        self.scores: list[Scores] = []
        self.seconds, self.num_targets = 0.0, 0
        torch.manual_seed(seed)

    @property
    def num_steps(self) -> int:
        return self.trainer.num_steps

    def run(self, path: Path, on_progress: OnProgress) -> None:
        """Train to the last mark; where `Task.check` stops it, save first.

        Args:
            path: of the checkpoint, from which it resumes if that is a file.
        """
        if path.is_file():
            self.load_state_dict(load_checkpoint(path))
        saved = time.monotonic()
        try:
            while not self._is_complete():
                self.task.check()
                on_progress(self.num_steps / self.marks[-1], self._text())
                self._advance(on_progress)
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    save_checkpoint(path, self.state_dict())
                    saved = time.monotonic()
        except Stopped:
            save_checkpoint(path, self.state_dict())
            raise
        save_checkpoint(path, self.state_dict())

    def _is_complete(self) -> bool:
        return self._is_scored() and self.num_steps >= self.marks[-1]

    def _is_scored(self) -> bool:
        """Whether the present step has its scores."""
        return bool(self.scores) and self.scores[-1].step == self.num_steps

    def _advance(self, on_progress: OnProgress) -> None:
        """Do what comes next: an evaluation, the scores of a mark, or a step."""
        step, is_mark = self.num_steps, self.num_steps in self.marks
        is_measured = bool(self.points) and self.points[-1].step == step
        if not is_measured and (is_evaluated(step) or is_mark):
            self.evaluate()
        elif is_mark and not self._is_scored():
            self.score(on_progress)
        else:
            self.train_step()

    def score(self, on_progress: OnProgress) -> None:
        """Score the averaged weights on the test pairs."""
        task, done = self.task, self.num_steps / self.marks[-1]
        self.model.eval()
        with self.trainer.averaged():
            found = score(
                self.model,
                task.tokenizer,
                task.corpus,
                task.settings,
                lambda _, text: on_progress(done, f"{self._text()}; searching {text}"),
                task.check,
            )
        self.scores.append(replace(found, step=self.num_steps))

    def result(self) -> TrainedModel:
        return TrainedModel(
            variant=self.variant,
            seed=self.seed,
            task=self.task.settings.task,
            context=self.task.settings.context,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            num_components=self.model.head.num_components,
            points=tuple(self.points),
            scores=tuple(self.scores),
        )

    def train_step(self) -> float:
        """One update; returns its seconds."""
        start = time.perf_counter()
        if self.batches.is_epoch_over:
            self.batches.start_epoch()
        batch = next(self.batches)
        try:
            self.losses.append(self.trainer.step(batch))
        except Diverged as error:
            raise ValueError(
                f"{self.variant}, seed {self.seed}, diverged at step {self.num_steps + 1}: "
                f"{error}. Begin anew with a lower --lr than {self.task.settings.rate:g}"
            ) from None
        self.num_targets += batch.num_targets
        elapsed = time.perf_counter() - start
        self.seconds += elapsed
        return elapsed

    def evaluate(self) -> None:
        """Add a point: the averaged weights on the valid pairs."""
        self.model.eval()
        task = self.task
        with self.trainer.averaged():
            valid_nats = held_out_nats(
                self.model,
                task.corpus.encoded["valid"],
                task.tokenizer.pad_token_id,
                task.settings.batch_tokens,
            )
        self.points.append(
            Point(
                step=self.num_steps,
                seconds=self.seconds,
                num_targets=self.num_targets,
                train_nats=sum(self.losses) / len(self.losses) if self.losses else None,
                valid_nats=valid_nats,
            )
        )
        self.losses = []

    def _text(self) -> str:
        text = f"{self.variant}, seed {self.seed}, step {self.num_steps} of {self.marks[-1]}"
        if self.points:
            text += f": valid {self.points[-1].valid_nats:.4f} nats"
        return f"{text}; {self.num_targets / self.seconds:,.0f} tokens/s" if self.seconds else text

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as tensors and plain values."""
        return {
            "trainer": self.trainer.state_dict(),
            "batches": self.batches.state_dict(),
            "losses": self.losses,
            "points": json.dumps([asdict(point) for point in self.points]),
            "scores": json.dumps([asdict(found) for found in self.scores]),
            "seconds": self.seconds,
            "num_targets": self.num_targets,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self.batches.load_state_dict(state["batches"])
        self.losses = state["losses"]
        self.points = [from_json(Point, point) for point in json.loads(state["points"])]
        self.scores = [from_json(Scores, found) for found in json.loads(state["scores"])]
        self.seconds, self.num_targets = state["seconds"], state["num_targets"]


def is_evaluated(step: int) -> bool:
    """Every 32nd step, from the 512th on every 64th, from the 1,024th on every 128th, and so on."""
    return step % max(EVERY, 1 << max(0, (step // NUM_EVALUATIONS).bit_length() - 1)) == 0
