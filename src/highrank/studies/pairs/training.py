"""One model of a study: its training, evaluations and scores."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from highrank.data.pairs.encoded import PairBatches
from highrank.files import from_json
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.integrations.huggingface.pairs.trainable import TrainablePairs
from highrank.integrations.huggingface.variants import VariantTraining, is_evaluated
from highrank.progress import OnProgress
from highrank.studies.pairs.corpus import Corpus
from highrank.studies.pairs.scoring import Scores, held_out_nats, score
from highrank.studies.pairs.settings import Settings

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
    encoder: TextEncoder
    check: Callable[[], None]
    """Called often, where the work may end; raises `Stopped` if it is to."""


class PairsTraining(VariantTraining):
    """A model in training, which is scored at its marks.

    Args:
        model: with the head of its variant.
        marks: steps at which it is scored, the first at equal tokens; the most end the training.
    """

    point_type = Point

    def __init__(
        self, task: Task, model: Any, variant: str, seed: int, marks: tuple[int, ...]
    ) -> None:
        self.task, self.marks, settings = task, sorted(set(marks)), task.settings
        added = settings.added_lr(model.get_output_embeddings().head.hidden_size)
        pad = task.encoder.tokenizer.pad_token_id
        pairs = task.corpus.encoded["train"]
        super().__init__(
            TrainablePairs(model, settings.label_smoothing, added / settings.rate),
            variant,
            seed,
            batches=PairBatches(pairs, settings.batch_tokens, pad=pad, seed=seed),
            stage=settings.stage(marks[0]),
            check=task.check,
        )
        self.scores: list[Scores] = []
        self.seconds, self.num_targets = 0.0, 0

    @property
    def fraction(self) -> float:
        return self.num_steps / self.marks[-1]

    @property
    def is_complete(self) -> bool:
        return self.is_scored and self.num_steps >= self.marks[-1]

    @property
    def is_scored(self) -> bool:
        """Whether the present step has its scores."""
        return bool(self.scores) and self.scores[-1].step == self.num_steps

    def advance(self, on_progress: OnProgress) -> None:
        """Evaluate, score at a mark, or take a step."""
        is_mark = self.num_steps in self.marks
        is_due = is_mark or is_evaluated(self.num_steps, EVERY, NUM_EVALUATIONS)
        if is_due and not self.is_measured:
            self.evaluate()
        elif is_mark and not self.is_scored:
            self.score(on_progress)
        else:
            self.train_step()

    def train_step(self) -> float:
        seconds = super().train_step()
        assert self.trainer is not None
        self.seconds += seconds
        self.num_targets += self.trainer.num_targets
        return seconds

    def evaluate(self) -> None:
        """Add a point: the averaged weights on the valid pairs."""
        self.model.eval()
        task = self.task
        with self.averaged():
            valid_nats = held_out_nats(
                self.model,
                task.corpus.encoded["valid"],
                task.encoder.tokenizer.pad_token_id,
                task.settings.batch_tokens,
            )
        self.points.append(
            Point(
                step=self.num_steps,
                seconds=self.seconds,
                num_targets=self.num_targets,
                train_nats=self.train_nats,
                valid_nats=valid_nats,
            )
        )
        self.losses = []

    def score(self, on_progress: OnProgress) -> None:
        """Score the averaged weights on the test pairs."""
        self.model.eval()
        with self.averaged():
            found = score(
                self.model,
                self.task.encoder,
                self.task.corpus,
                self.task.settings,
                lambda _, text: on_progress(self.fraction, f"{self.text()}; searching {text}"),
                self.check,
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

    def text(self) -> str:
        text = super().text()
        return f"{text}; {self.num_targets / self.seconds:,.0f} tokens/s" if self.seconds else text

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "scores": json.dumps([asdict(found) for found in self.scores]),
            "seconds": self.seconds,
            "num_targets": self.num_targets,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.scores = [from_json(Scores, found) for found in json.loads(state["scores"])]
        self.seconds, self.num_targets = state["seconds"], state["num_targets"]
