"""One model of a finetuning: AdamW at a constant learning rate, averaged weights, a checkpoint.

The same number of steps gives the same numbers, however often it was interrupted. B blocks of a
batch, L tokens of a block.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from highrank.files import from_json
from highrank.integrations.huggingface.upgrade import train_head, train_head_and_last_block
from highrank.models.weights import replaced
from highrank.studies.finetune.components import component_state
from highrank.studies.finetune.result import Arm, Point
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.text import Blocks
from highrank.training.averaging import Average
from highrank.training.checkpoint import load_checkpoint, save_checkpoint
from highrank.training.signals import Stopped

WARM_UP = 50
# The average follows the last quarter of the steps, whenever it is looked at.
AVERAGE_POWER = 3.0
SECONDS_BETWEEN_CHECKPOINTS = 300.0
# Steps between evaluations, until there are so many of them that this is doubled.
EVERY, NUM_EVALUATIONS = 16, 4


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all models of a finetuning share."""

    settings: Settings
    train: Blocks
    valid: Blocks
    check: Callable[[], None]
    """Called often, where the work may end; raises `Stopped` if it is to."""


class ArmTraining:
    """A model in training.

    Args:
        model: with the head of its variant; in evaluation mode.
        path: of the checkpoint, from which it resumes if that is a file.
        share: seconds that it may take, evaluations included; None for no limit.
    """

    def __init__(
        self, task: Task, model: Any, variant: str, seed: int, path: Path, share: float | None
    ) -> None:
        self.task, self.model, self.variant, self.seed = task, model, variant, seed
        self.path, self.share = path, share
        FREEZE[task.settings.weights](model)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = _optimizer(model, task.settings) if self.trained else None
        self.average = Average(self.trained, AVERAGE_POWER)
        self.step, self.seconds = 0, 0.0
        """Steps done, and all time spent."""
        self.times: list[float] = []
        """Of each step."""
        self.losses: list[float] = []
        """Of the steps since the last evaluation."""
        self.points: list[Point] = []
        self.eval_seconds = 0.0
        torch.manual_seed(seed)
        if path.is_file():
            self._restore(load_checkpoint(path))

    @property
    def fraction(self) -> float:
        """How much is done."""
        steps, found = self.task.settings.steps, 0.0
        if steps is not None:
            found = self.step / steps
        if self.share is not None:
            found = max(found, self.seconds / self.share)
        return min(1.0, found)

    def run(self, on_progress: Callable[[float, str], None]) -> Arm:
        """Train to the end; where `Task.check` stops it, save first."""
        saved = time.monotonic()
        try:
            while True:
                self.task.check()
                if self._awaits_evaluation():
                    self._evaluate(on_progress)
                elif self._is_over():
                    break
                else:
                    self.train_step()
                    on_progress(self.fraction, self._text())
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self.save()
                    saved = time.monotonic()
        except Stopped:
            self.save()
            raise
        self.save()
        return self.result()

    def result(self) -> Arm:
        return Arm(
            variant=self.variant,
            seed=self.seed,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            num_trained=sum(p.numel() for p in self.trained),
            step_seconds=median(self.times) if self.times else None,
            points=tuple(self.points),
        )

    def averaged(self) -> Any:
        """A context in which the model has its averaged weights."""
        values = iter(self.average.values)
        return replaced(
            self.model,
            [next(values) if p.requires_grad else p.detach() for p in self.model.parameters()],
        )

    def _awaits_evaluation(self) -> bool:
        if self.points and self.points[-1].step == self.step:
            return False
        return is_evaluated(self.step) or self._is_over()

    def _is_over(self) -> bool:
        if not self.trained:
            return True
        steps = self.task.settings.steps
        if steps is not None and self.step >= steps:
            return True
        # The last evaluation takes as long as the one before it.
        return (
            self.share is not None
            and self.step > 0
            and self.seconds + self.eval_seconds >= self.share
        )

    def train_step(self) -> None:
        """One update, and its time."""
        start, settings, blocks = time.perf_counter(), self.task.settings, self.task.train
        assert self.optimizer is not None
        batch = blocks.batch(self.step, settings.batch_size, self.seed)  # (B, L)
        self.model.train()
        loss = self.model(input_ids=batch, labels=blocks.labels(batch), use_cache=False).loss
        if not math.isfinite(loss.item()):
            raise ValueError(
                f"The loss of {self.variant}, seed {self.seed}, is {loss.item()} at step "
                f"{self.step + 1}: begin anew with a lower --lr than {settings.lr:g}"
            )
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = group["full_lr"] * min(1.0, (self.step + 1) / WARM_UP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.trained)
        self.step += 1
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - start)
        self.seconds += self.times[-1]

    def _evaluate(self, on_progress: Callable[[float, str], None]) -> None:
        start = time.perf_counter()
        on_progress(self.fraction, self._text("evaluating"))
        self.model.eval()
        with self.averaged():
            nats = held_out_nats(self.model, self.task.valid, self.task.settings, self.task.check)
            components = component_state(self.model, self.task.valid)
        self.points.append(
            Point(
                step=self.step,
                seconds=sum(self.times),
                train_nats=sum(self.losses) / len(self.losses) if self.losses else None,
                valid_nats=nats,
                components=components,
            )
        )
        self.losses = []
        self.eval_seconds = time.perf_counter() - start
        self.seconds += self.eval_seconds

    def _text(self, doing: str = "") -> str:
        text = f"{self.variant}, seed {self.seed}, step {self.step}"
        if self.points:
            text += f": held-out {self.points[-1].valid_nats:.4f} nats"
        return f"{text}; {doing}" if doing else text

    def save(self) -> None:
        state: dict[str, Any] = {
            "parameters": [p.detach() for p in self.trained],
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else {},
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "points": [asdict(point) for point in self.points],
            "random": torch.get_rng_state(),
        }
        save_checkpoint(self.path, state)

    @torch.no_grad()
    def _restore(self, state: Mapping[str, Any]) -> None:
        for parameter, value in zip(self.trained, state["parameters"], strict=True):
            parameter.copy_(value)
        self.average.load_state_dict(state["average"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self.points = [from_json(Point, point) for point in state["points"]]
        torch.set_rng_state(state["random"])


COUNTERS = ("step", "seconds", "times", "losses", "eval_seconds")
FREEZE: dict[str, Callable[[Any], None]] = {
    "all": lambda model: None,
    "head": train_head,
    "last-block": train_head_and_last_block,
}


def is_evaluated(step: int) -> bool:
    """Every 16th step, from the 128th on every 32nd, from the 256th on every 64th, and so on."""
    return step % max(EVERY, 1 << max(0, (step // NUM_EVALUATIONS).bit_length() - 1)) == 0


@torch.no_grad()
def held_out_nats(
    model: Any, blocks: Blocks, settings: Settings, check: Callable[[], None]
) -> float:
    """Mean loss of a held-out token; blocks know nothing of each other."""
    total = 0.0
    for batch in evaluation_batches(blocks, settings):
        check()
        out = model(
            input_ids=batch, labels=blocks.labels(batch), use_cache=False, return_logits=False
        )
        total += out.loss.item() * len(batch)
    return total / num_evaluated(blocks, settings)


def evaluation_batches(blocks: Blocks, settings: Settings) -> Iterator[Tensor]:
    yield from blocks.rows[: num_evaluated(blocks, settings)].split(settings.batch_size)


def num_evaluated(blocks: Blocks, settings: Settings) -> int:
    """Blocks of the held-out text that an evaluation reads."""
    return min(blocks.count, max(1, settings.eval_tokens // blocks.num_predicted))


def _optimizer(model: Any, settings: Settings) -> torch.optim.AdamW:
    """Weight decay on matrices only; what the upgrade has added may have a rate of its own."""
    output = model.get_output_embeddings()
    old = {id(output.weight), id(output.bias)}
    added = {id(p) for p in output.parameters()} - old
    groups = []
    for is_added in (False, True):
        for is_matrix in (False, True):
            parameters = [
                p
                for p in model.parameters()
                if p.requires_grad and (id(p) in added) == is_added and (p.dim() > 1) == is_matrix
            ]
            lr = settings.head_lr if is_added and settings.head_lr is not None else settings.lr
            decay = settings.weight_decay if is_matrix else 0.0
            if parameters:
                groups.append(
                    {"params": parameters, "lr": lr, "full_lr": lr, "weight_decay": decay}
                )
    return torch.optim.AdamW(groups)
