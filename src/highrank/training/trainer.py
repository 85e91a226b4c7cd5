"""What a run does between two checkpoints: steps, epochs, and its whole state.

T time, B streams, D hidden size.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.analysis.components import mixture_use
from highrank.config import RunConfig, StageConfig
from highrank.data.batches import Streams, draw_bptt
from highrank.evaluation.static import Evaluation, evaluate
from highrank.models.backbone import State, joined, map_state, restored_state, tensors_of
from highrank.models.language_model import LanguageModel
from highrank.models.weights import load_state, replaced, save_state
from highrank.training.averaging import Average, is_non_monotonic
from highrank.training.penalties import activation_penalties


class Diverged(Exception):
    """The loss or its gradient is no longer a finite number.

    Args:
        message: what happened, and when.
        advice: what to change, as options of `highrank train`.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class Trainer:
    """A run in progress. Everything that decides its future is in `state_dict`.

    Args:
        model: to be trained, where it is.
        data: the training split as streams, where the model is.
    """

    def __init__(self, config: RunConfig, model: LanguageModel, data: Streams) -> None:
        self.config, self.model, self.data = config, model, data
        self.device = next(model.parameters()).device
        self.generator = torch.Generator().manual_seed(config.seed)
        self.hidden_state: State = None
        self.is_finetuning = False
        self.epoch, self.row, self.step = 1, 0, 0
        self.history: list[float] = []
        self.best = math.inf
        self.average: Average | None = None
        self.best_state = save_state(self.model)
        self.epoch_loss = torch.zeros((), dtype=torch.float64)
        self.epoch_tokens = 0
        self.window_loss = 0.0
        self._start_stage()

    @property
    def stage(self) -> StageConfig:
        stage = self.config.finetune if self.is_finetuning else self.config.train
        assert stage is not None
        return stage

    @property
    def num_components(self) -> int:
        """K."""
        return self.model.head.num_components

    @property
    def is_epoch_over(self) -> bool:
        return self.row >= len(self.data) - 2

    @property
    def epoch_progress(self) -> float:
        """The fraction of the stage's epochs that is done."""
        return (self.epoch - 1 + min(1.0, self.row / (len(self.data) - 2))) / self.stage.epochs

    @property
    def train_loss(self) -> float:
        """Mean loss of this epoch's tokens so far, with dropout."""
        return self.epoch_loss.item() / max(1, self.epoch_tokens)

    def _schedule(self, progress: float) -> float:
        """Factor of the learning rate: warm-up times cosine."""
        factor = 0.5 * (1 + math.cos(math.pi * min(1.0, progress))) if self.stage.anneal else 1.0
        if self.step < self.stage.warmup_steps:
            factor *= (self.step + 1) / self.stage.warmup_steps
        return factor

    def train_window(self, progress: float) -> int:
        """One update; returns its number of tokens.

        Args:
            progress: the fraction of the stage that is done, for schedules.
        """
        self.model.train()
        length = self._draw_bptt()
        lr = self.stage.lr * self._schedule(progress) * length / self.config.batch.bptt
        length = min(length, len(self.data) - 1 - self.row)
        tokens = self.data[self.row : self.row + length]  # (T, B)
        target = self.data[self.row + 1 : self.row + 1 + length]  # (T, B)
        self.optimizer.zero_grad()
        loss = self._backward(tokens, target)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.stage.clip)
        if not (math.isfinite(loss) and norm.isfinite()):
            raise Diverged(f"the loss is {loss} and its gradient's norm {norm.item()}")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model.parameters())
        self.window_loss = loss
        self.row += length
        self.step += 1
        self.epoch_loss += loss * tokens.numel()
        self.epoch_tokens += tokens.numel()
        return tokens.numel()

    def _draw_bptt(self) -> int:
        batch = self.config.batch
        return draw_bptt(
            batch.bptt,
            std=batch.bptt_std,
            max_delta=batch.bptt_max_delta,
            half_probability=batch.bptt_half_probability,
            generator=self.generator,
        )

    def validate(self, valid: NDArray[np.integer], **options: Any) -> Evaluation:
        """Of the average where there is one."""
        with self._averaged():
            return evaluate(self.model, valid, self.config.valid_batch_size, **options)

    def mixture_use(self, valid: NDArray[np.integer]) -> dict[str, float]:
        """What the components do at the start of a split; empty without a mixture."""
        self.model.eval()
        with self._averaged():
            use = mixture_use(self.model, valid)
        return {} if use is None else asdict(use)

    def note_validation(self, valid_loss: float) -> bool:
        """Keep the weights if they are the best so far; returns whether they are."""
        if valid_loss >= self.best:
            return False
        self.best = valid_loss
        with self._averaged():
            self.best_state = {k: v.clone() for k, v in save_state(self.model).items()}
        return True

    def end_epoch(self, valid_loss: float) -> None:
        """Decide, after a whole epoch, whether to average, to stop, or to continue."""
        stage, was_averaging = self.stage, self.average is not None
        stop = stage.stop_after
        self.is_stage_over = self.epoch >= stage.epochs or (
            stop is not None and is_non_monotonic(self.history, valid_loss, stop)
        )
        if stage.optimizer == "sgd" and not was_averaging:
            n = stage.switch_after
            is_triggered = n is not None and is_non_monotonic(self.history, valid_loss, n)
            if stage.switch_epoch is not None:
                is_triggered = self.epoch == stage.switch_epoch
            if is_triggered:
                self.average = self._make_average()
        if not was_averaging or stop is not None:
            self.history.append(valid_loss)
        self.epoch += 1
        self._start_epoch()

    def start_finetuning(self, valid_loss: float) -> None:
        """Continue from the best weights, with a fresh optimiser and a fresh history."""
        self.is_finetuning, self.epoch, self.history = True, 1, []
        self.best = valid_loss
        load_state(self.model, self.best_state)
        self._start_stage()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "hidden_state": tensors_of(self.hidden_state),
            "random": self._random_state(),
            "position": {
                name: getattr(self, name)
                for name in (
                    "is_finetuning",
                    "is_stage_over",
                    "epoch",
                    "row",
                    "step",
                    "epoch_tokens",
                )
            },
            "history": self.history,
            "best": self.best,
            "best_state": self.best_state,
            "epoch_loss": self.epoch_loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave. The state must be of the same configuration."""
        for name, value in state["position"].items():
            setattr(self, name, value)
        self.model.load_state_dict(state["model"])
        self.optimizer = self._make_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        self.average = None
        if state["average"] is not None:
            self.average = self._make_average()
            self.average.load_state_dict(state["average"])
        shapes = [tensor.shape for tensor in tensors_of(self.hidden_state)]
        if (found := [tensor.shape for tensor in tensors_of(state["hidden_state"])]) != shapes:
            raise ValueError(f"hidden states must have shapes {shapes}, got {found}")
        self.hidden_state = restored_state(state["hidden_state"], self.hidden_state, self.device)
        self.history, self.best, self.best_state = (
            state["history"],
            state["best"],
            state["best_state"],
        )
        self.epoch_loss = state["epoch_loss"]
        self.generator.set_state(state["random"]["windows"])
        torch.set_rng_state(state["random"]["torch"])
        if "cuda" in state["random"] and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"], self.device)

    def _random_state(self) -> dict[str, Tensor]:
        state = {"torch": torch.get_rng_state(), "windows": self.generator.get_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _averaged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else replaced(self.model, self.average.values)

    def _make_average(self) -> Average:
        return Average(self.model.parameters(), self.stage.average_power or 0.0)

    def _start_stage(self) -> None:
        self.is_stage_over = False
        self.optimizer = self._make_optimizer()
        is_averaging = self.stage.optimizer == "asgd" or self.stage.average_power is not None
        self.average = self._make_average() if is_averaging else None
        self._start_epoch()

    def _start_epoch(self) -> None:
        self.row, self.epoch_tokens = 0, 0
        self.epoch_loss = torch.zeros((), dtype=torch.float64)
        self.hidden_state = self.model.initial_state(self.data.batch_size)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        kind = torch.optim.AdamW if self.stage.optimizer == "adamw" else torch.optim.SGD
        return kind(self.model.parameters(), lr=self.stage.lr, weight_decay=self.stage.weight_decay)

    def _backward(self, tokens: Tensor, target: Tensor) -> float:
        """Gradients of the whole batch, in micro-batches of streams; returns the mean loss."""
        batch_size = tokens.shape[1]
        size = self.config.batch.micro_batch_size or batch_size
        total, states = 0.0, []
        for first in range(0, batch_size, size):
            part = slice(first, first + size)
            state = map_state(_selector(part), self.hidden_state)
            with self._autocast():
                out = self.model(tokens[:, part], target[:, part], state)
                penalties = activation_penalties(
                    out.hidden,
                    out.raw,
                    self.config.activation_penalty,
                    self.config.temporal_penalty,
                )
            fraction = tokens[:, part].shape[1] / batch_size
            ((out.loss + penalties + out.penalty) * fraction).backward()
            total += out.loss.item() * fraction
            states.append(out.state)
        self.hidden_state = joined(states)
        return total

    def _autocast(self) -> torch.autocast:
        is_on = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_on)


def _selector(part: slice) -> Callable[[Tensor], Tensor]:
    """Picks the streams of a micro-batch out of a state's tensor."""
    return lambda tensor: tensor[:, part].contiguous()
