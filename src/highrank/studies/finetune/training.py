"""One model of a finetuning: its training and evaluations."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.components import COLLAPSED, MixtureState, component_report
from highrank.data.batches import Blocks
from highrank.heads import MixtureHead
from highrank.integrations.huggingface.trainable import TrainableModel
from highrank.integrations.huggingface.upgrade import train_head, train_head_and_last_block
from highrank.integrations.huggingface.variants import VariantTraining, is_evaluated
from highrank.progress import OnProgress
from highrank.studies.finetune.settings import Settings
from highrank.training.budget import Clock

# Steps between evaluations, until there are so many of them that this is doubled.
EVERY, NUM_EVALUATIONS = 16, 4
# Contexts on which components are compared, and the blocks that they are from.
NUM_CONTEXTS, NUM_BLOCKS = 256, 8
FREEZE: dict[str, Callable[[Any], None]] = {
    "all": lambda model: None,
    "head": train_head,
    "last-block": train_head_and_last_block,
}


@dataclass(frozen=True, kw_only=True)
class Components:
    """The components of a mixture, on contexts of the held-out text."""

    divergence: float
    """Mean Jensen-Shannon divergence of two components, in nats, at most log 2."""
    num_collapsed: int
    """Components that predict as one before them does: a divergence below 0.01 nats."""
    num_dead: int
    """Components of nearly no weight."""
    specialisation: float
    """Mutual information I(component; token), in nats."""
    gate_information: float
    """Mutual information I(component; context), in nats."""
    state: MixtureState


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model with its averaged weights, after some steps."""

    step: int
    seconds: float
    """Time of training, evaluations left out."""
    train_nats: float | None
    """Mean loss of the steps since the point before; None at the start."""
    valid_nats: float
    """Mean loss of a held-out token."""
    components: Components | None = None
    """None for a softmax."""


@dataclass(frozen=True, kw_only=True)
class TrainedVariant:
    """One model after its training."""

    variant: str
    """A start of a mixture, or the baseline, "softmax"."""
    seed: int
    num_parameters: int
    num_trained: int
    """Parameters that training changes."""
    points: tuple[Point, ...]

    @property
    def num_steps(self) -> int:
        return self.points[-1].step

    def nats_at(self, step: float) -> float:
        """Held-out loss after so many steps, interpolated between two evaluations."""
        steps = [point.step for point in self.points]
        return float(np.interp(step, steps, [point.valid_nats for point in self.points]))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that all models of a finetuning share."""

    settings: Settings
    train: NDArray[np.int32]
    """Token ids of the training split."""
    prefix: tuple[int, ...]
    """Token ids that every block begins with."""
    valid: Blocks
    check: Callable[[], None]
    """Called often, where the work may end; raises `Stopped` if it is to."""

    @property
    def num_evaluated(self) -> int:
        """Held-out blocks that an evaluation reads."""
        most = self.settings.eval_tokens // self.valid.num_predicted
        return min(self.valid.count, max(1, most))


class FinetuneTraining(VariantTraining):
    """A variant in training.

    Args:
        model: with the head of its variant.
    """

    point_type = Point

    def __init__(self, task: Task, model: Any, variant: str, seed: int) -> None:
        self.task, settings = task, task.settings
        FREEZE[settings.weights](model)
        added = settings.added_lr(model.get_output_embeddings().head.hidden_size)
        size, length = settings.batch_size, settings.block_length
        super().__init__(
            TrainableModel(model, added / settings.lr),
            variant,
            seed,
            batches=Blocks(task.train, size, seed=seed, length=length, prefix=task.prefix),
            stage=settings.stage,
            check=task.check,
        )
        self.clock = Clock(num_valid=0)
        self.clock.set_budget(settings.seconds_of_each())

    @property
    def fraction(self) -> float:
        """The fraction of the work that is done."""
        steps = self.task.settings.steps
        done = 0.0 if steps is None else self.num_steps / steps
        return min(1.0, max(done, self.clock.progress()))

    @property
    def is_over(self) -> bool:
        """Whether there are no further steps."""
        if self.trainer is None or self.num_steps == self.task.settings.steps:
            return True
        return self.num_steps > 0 and self.clock.is_over()

    @property
    def is_complete(self) -> bool:
        return self.is_measured and self.is_over

    def advance(self, on_progress: OnProgress) -> None:
        """Evaluate, or take a step."""
        is_due = is_evaluated(self.num_steps, EVERY, NUM_EVALUATIONS) or self.is_over
        if is_due and not self.is_measured:
            self.evaluate()
        else:
            self.train_step()

    def result(self) -> TrainedVariant:
        parameters = list(self.model.parameters())
        return TrainedVariant(
            variant=self.variant,
            seed=self.seed,
            num_parameters=sum(p.numel() for p in parameters),
            num_trained=sum(p.numel() for p in parameters if p.requires_grad),
            points=tuple(self.points),
        )

    def train_step(self) -> float:
        seconds = super().train_step()
        assert self.trainer is not None
        self.clock.add_window(self.trainer.num_targets, seconds)
        return seconds

    def evaluate(self) -> None:
        """Add a point: the averaged weights on the held-out text."""
        start = time.perf_counter()
        self.model.eval()
        with self.averaged():
            self.points.append(
                Point(
                    step=self.num_steps,
                    seconds=self.clock.window_seconds,
                    train_nats=self.train_nats,
                    valid_nats=held_out_nats(self.model, self.task),
                    components=find_components(self.model, self.task.valid),
                )
            )
        self.losses = []
        self.clock.add_validation(time.perf_counter() - start)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "clock": self.clock.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.clock.load_state_dict(state["clock"])
        # A resumed finetuning may get more time.
        self.clock.set_budget(self.task.settings.seconds_of_each())


@torch.no_grad()
def held_out_nats(model: TrainableModel, task: Task) -> float:
    """Mean loss of a held-out token."""
    total, size, blocks = 0.0, task.settings.batch_size, range(task.num_evaluated)
    for first in blocks[::size]:
        task.check()
        batch = task.valid.batch(blocks[first : first + size])
        total += model(batch.inputs, batch.target).loss.item() * batch.target.shape[1]
    return total / len(blocks)


def find_components(model: TrainableModel, valid: Blocks) -> Components | None:
    """The components on contexts that are spread over the first blocks; None for a softmax."""
    head = model.head
    if not isinstance(head, MixtureHead) or head.num_components < 2:
        return None
    batch = valid.batch(range(min(NUM_BLOCKS, valid.count)))
    states = model.head_inputs(batch.inputs).flatten(0, 1)  # (N, D)
    spacing = max(1, len(states) // NUM_CONTEXTS)
    report = component_report(head, states[spacing - 1 :: spacing], num_pair_contexts=NUM_CONTEXTS)
    divergences = report.pair_divergence
    # A component counts as collapsed if it predicts as one does that is kept.
    kept: list[int] = []
    for k in range(head.num_components):
        if all(divergences[k][j] >= COLLAPSED for j in kept):
            kept.append(k)
    return Components(
        divergence=fmean(divergences[i][j] for i, j in combinations(range(len(divergences)), 2)),
        num_collapsed=head.num_components - len(kept),
        num_dead=report.num_dead,
        specialisation=report.specialisation,
        gate_information=report.gate_information,
        state=report.state,
    )
