"""What a finetuning is: everything that decides its numbers."""

import math
from dataclasses import dataclass
from typing import Literal

# What the upgraded models are compared with: the model as it was, trained on.
SOFTMAX = "softmax"
# A control for what is no merit of a mixture: one softmax over a linear map of the state.
LINEAR = "linear"


@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str
    """A folder, or a name on the hub."""
    text: str
    starts: tuple[str, ...] = ("residual",)
    """Of `highrank.upgrade`, or the control "linear"; each is compared with the model continued as
    a softmax."""
    num_components: int = 4
    seeds: tuple[int, ...] = (0,)
    """Of the order of the blocks, of dropout, and of the noise that breaks the symmetry."""
    weights: Literal["all", "head", "last-block"] = "all"
    """Which are trained."""
    lr: float = 1e-4
    """Of AdamW, constant after a short warm-up."""
    head_lr: float | None = None
    """Of the weights that the upgrade has added; None takes `lr`."""
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest 2-norm of the gradient."""
    batch_size: int = 8
    """Blocks per step."""
    block_length: int = 256
    """Tokens."""
    steps: int | None = None
    """Most steps of each model; None for one epoch, or with a budget for as many as it allows."""
    budget: float | None = None
    """Seconds of all models together, evaluations included."""
    eval_tokens: int = 50_000
    """Of the held-out text, at most."""

    def __post_init__(self) -> None:
        at_least_one = ("num_components", "batch_size", "steps", "eval_tokens")
        for name in at_least_one:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_option(name)} must be at least 1, got {value}")
        for name in ("lr", "head_lr", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{_option(name)} must be a positive number, got {value}")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ValueError(f"weight-decay must be at least 0, got {self.weight_decay}")
        if self.block_length < 2:
            raise ValueError(f"block-length must be at least 2, got {self.block_length}")
        for name in ("starts", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be one or more, each once, got {list(values)}")
        if SOFTMAX in self.starts:
            raise ValueError(
                f"starts must be those of a mixture, got {SOFTMAX}: it is always there"
            )

    @property
    def variants(self) -> tuple[str, ...]:
        return (SOFTMAX, *self.starts)


def _option(name: str) -> str:
    return name.replace("_", "-")
