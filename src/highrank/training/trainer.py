"""One update of a model from one batch, and everything that decides the next one.

Any model that is called with a batch's inputs, its targets and a state, and returns a loss, a
penalty and the new state: a `LanguageModel`, an encoder–decoder, a pretrained model in an adapter.
T time, B sequences.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from highrank.config import StageConfig
from highrank.data.batches import Batch
from highrank.models.backbone import (
    ParameterGroup,
    State,
    joined,
    map_state,
    restored_state,
    tensors_of,
)
from highrank.models.weights import replaced
from highrank.training.averaging import Average
from highrank.training.schedule import learning_rate
from highrank.training.sharding import clip, optimizer_shards, shards, synchronise
from highrank.training.world import World


class Diverged(Exception):
    """The loss or its gradient is no longer a finite number.

    Args:
        message: what happened, and when.
        advice: what to change, as options of `highrank train`.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class StepOutput(Protocol):
    """The results of a model for a batch."""

    @property
    def loss(self) -> Tensor:
        """Mean over the targets that count."""

    @property
    def penalty(self) -> Tensor | float:
        """The term that is added to the loss in training, and not reported."""

    @property
    def state(self) -> State:
        """Detached; what carries over to the next batch."""


@runtime_checkable
class Trainable(Protocol):
    """An `nn.Module` that a `Trainer` can train.

    One that has `reads_position`, and it is true, is given the batch's `position`, too.
    """

    def __call__(self, inputs: Any, target: Tensor, state: State) -> StepOutput: ...

    def initial_state(self, batch_size: int) -> State: ...

    def parameter_groups(self) -> list[ParameterGroup]: ...

    def parameters(self) -> Any: ...


class Trainer:
    """A model in training. `state_dict` is all that decides its future.

    Args:
        model: to be trained, where it is.
        stage: optimiser, learning rate, clipping, averaging.
        micro_batch_size: sequences per backward pass; None takes all at once.
        precision: bfloat16 runs the matrix multiplies under autocast.
        world: the processes that train the model together.
    """

    def __init__(
        self,
        model: Trainable,
        stage: StageConfig,
        *,
        micro_batch_size: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
        world: World | None = None,
    ) -> None:
        assert isinstance(model, nn.Module)
        self.model: Any = model
        self.device = next(model.parameters()).device
        self.micro_batch_size, self.precision = micro_batch_size, precision
        self.world = World() if world is None else world
        self.num_steps, self.num_targets = 0, 0
        """Updates, and targets of the last batch in all processes."""
        self.hidden_state: State | None = None
        self.start_stage(stage)

    def start_stage(self, stage: StageConfig) -> None:
        """Continue with a fresh optimiser."""
        self.stage = stage
        self.optimizer = self._make_optimizer()
        self.average: Average | None = None
        if stage.optimizer == "asgd" or stage.average_power is not None:
            self.start_averaging()

    def start_averaging(self) -> None:
        self.average = Average(self._trained(), self.stage.average_power or 0.0)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights, where there is an average."""
        if self.average is None:
            return nullcontext()
        return replaced(nn.ParameterList(self._trained()), self.average.values)

    def step(self, batch: Batch, progress: float = 0.0) -> float:
        """One update; returns the mean loss of the batch's targets before it.

        Args:
            progress: the fraction of the stage that is done, for schedules.
        """
        self.model.train()
        self.optimizer.zero_grad()
        loss = self._backward(batch)
        parameters = self._trained()
        self.world.sum_gradients(parameters)
        norm = clip(parameters, self.stage.clip)
        if not (math.isfinite(loss) and norm.isfinite()):
            raise Diverged(f"the loss is {loss} and its gradient's norm {norm.item()}")
        lr = learning_rate(self.stage, self.num_steps, progress, batch.lr_ratio)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(parameters)
        self.num_steps += 1
        return loss

    def _backward(self, batch: Batch) -> float:
        """Gradients of the whole batch, in micro-batches; each target counts alike."""
        batch_size = batch.target.shape[1]
        if self.hidden_state is None or not batch.carries:
            self.hidden_state = self.model.initial_state(batch_size)
        self.num_targets = int(self.world.sum(batch.num_targets))
        reads_position = getattr(self.model, "reads_position", False)
        total, states, first = 0.0, [], 0
        parts = batch.parts(self.micro_batch_size)
        for part in parts:
            size = part.target.shape[1]
            synchronise(self.model, is_last=part is parts[-1])
            state = map_state(_columns(first, size), self.hidden_state)
            options = {"position": part.position} if reads_position else {}
            with self._autocast():
                out = self.model(part.inputs, part.target, state, **options)
            if part.num_targets > 0:
                fraction = part.num_targets / self.num_targets
                ((out.loss + out.penalty) * fraction).backward()
                total += out.loss.item() * fraction
            elif self.world.shard != "none":
                # The others wait for this process' part of their gradients.
                (out.loss / self.num_targets).backward()
            states.append(out.state)
            first += size
        self.hidden_state = joined(states) if batch.keeps_state else None
        return self.world.sum(total)

    def _trained(self) -> list[nn.Parameter]:
        """The model's parameters without those that are frozen."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def _autocast(self) -> torch.autocast:
        is_on = self.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_on)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        stage, groups = self.stage, self.model.parameter_groups()
        options: dict[str, Any] = {"lr": stage.lr, "weight_decay": stage.weight_decay}
        if stage.optimizer == "adamw":
            return torch.optim.AdamW(groups, betas=stage.betas, **options)
        return torch.optim.SGD(groups, **options)

    def state_dict(self) -> dict[str, Any]:
        """All but frozen parameters, the states of all processes' sequences included."""
        state, frozen = self.hidden_state, self._frozen_names()
        current = self.model.state_dict(keep_vars=True)
        # Those that are tied are one tensor here, too.
        detached = {id(tensor): tensor.detach() for tensor in current.values()}
        hidden = None if state is None else tensors_of(map_state(self.world.gather_columns, state))
        return {
            "model": {k: detached[id(v)] for k, v in current.items() if k not in frozen},
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "hidden_state": hidden,
            "random": self.world.gather(self._random_state()),
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave of the same model and stage."""
        self.num_steps = state["num_steps"]
        frozen, current = self._frozen_names(), self.model.state_dict()
        loaded = shards(state["model"], current)
        self.model.load_state_dict({**{k: current[k] for k in frozen}, **loaded})
        self.optimizer = self._make_optimizer()
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.load_state_dict(optimizer_shards(state["optimizer"], trained))
        self.average = None
        if state["average"] is not None:
            self.start_averaging()
            assert self.average is not None
            self.average.load_state_dict(state["average"])
        self.hidden_state = None
        if state["hidden_state"] is not None:
            self.hidden_state = self._own_columns(state["hidden_state"])
        random = state["random"]
        if len(random) == self.world.size:
            self._set_random_state(random[self.world.rank])
        else:
            # Another number of processes draws other masks, and not those of the first steps again.
            torch.manual_seed(self.world.seed(torch.initial_seed(), self.num_steps))

    def _frozen_names(self) -> set[str]:
        parameters = self.model.named_parameters(remove_duplicate=False)
        return {name for name, p in parameters if not p.requires_grad}

    def _own_columns(self, saved: list[Tensor]) -> State:
        """The state of this process' sequences, of that of all."""
        batch_size = saved[0].shape[1] if saved else 1
        like = self.model.initial_state(batch_size)
        for tensor in saved:
            if tensor.dim() < 2 or tensor.shape[1] != batch_size:
                found = tuple(tensor.shape)
                raise ValueError(f"hidden states must have {batch_size} columns, got {found}")
        state = restored_state(saved, like, self.device)
        if self.world.size == 1 or not saved:
            return state
        part = self.world.part(batch_size)
        return map_state(_columns(part.start, part.stop - part.start), state)

    def _random_state(self) -> dict[str, Tensor]:
        state = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _set_random_state(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self.device)


def _columns(first: int, size: int) -> Any:
    """A function that takes these sequences out of a state's tensor."""
    return lambda tensor: tensor[:, first : first + size].contiguous()
