"""Settings of a finetuning: everything that decides its numbers, the options of the command."""

from dataclasses import dataclass
from typing import Literal

from highrank.config import StageConfig
from highrank.integrations.huggingface.recipe import BASELINE, CONTROL, added_lr
from highrank.signatures import check_ranges

COUNTS = ("num_components", "seeds", "steps", "batch_size", "block_length", "eval_tokens")


@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str
    """Folder of a causal language model, or its name on the hub."""
    text: str
    """A text, or a folder of texts; its valid split is held out."""
    starts: tuple[Literal["residual", "identity", "new", "random", "linear"], ...] = (
        "residual",
        "linear",
    )
    """How a mixture starts: residual and identity change no prediction. linear is a control,
    one softmax over a linear map of the hidden state: what added weights win by themselves."""
    num_components: int = 4
    """K, the softmaxes of a mixture."""
    seeds: int = 1
    """How many of each; differences are paired by seed."""
    budget: str | None = None
    """Time for everything, such as 90s, 20m or 1.5h; each model gets an equal part."""
    steps: int | None = None
    """Most steps of each model."""
    weights: Literal["all", "head", "last-block"] = "all"
    """Weights that are trained: all; the new head; the new head and the last block."""
    lr: float = 1e-4
    """Learning rate of AdamW, constant after 50 steps of warm-up."""
    head_lr: float | None = None
    """Learning rate of the weights that the upgrade adds."""
    weight_decay: float = 0.01
    """Weight decay of matrices."""
    batch_size: int = 8
    """Blocks of text in a step."""
    block_length: int = 256
    """Tokens of a block; at most as many as the model has positions."""
    eval_tokens: int = 50_000
    """Held-out tokens in each evaluation, at most."""

    def __post_init__(self) -> None:
        values = {name.removeprefix("num_"): value for name, value in vars(self).items()}
        check_ranges(values)
        for name in COUNTS:
            value, option = getattr(self, name), name.removeprefix("num_").replace("_", "-")
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        for name in ("lr", "head_lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name.replace('_', '-')} must be a positive number, got {value}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight-decay must be at least 0, got {self.weight_decay}")
        if not self.starts or len(set(self.variants)) <= len(self.starts):
            raise ValueError(f"starts must be one or more, each once, got {list(self.starts)}")
        self.seconds_of_each()

    def added_lr(self, hidden_size: int) -> float:
        """The learning rate of the weights that the upgrade adds."""
        return self.head_lr or added_lr(self.lr, hidden_size)

    @property
    def mixtures(self) -> tuple[str, ...]:
        """The starts of mixtures, without the control."""
        return tuple(start for start in self.starts if start != CONTROL)

    @property
    def variants(self) -> tuple[str, ...]:
        """The baseline, then the starts."""
        return (BASELINE, *self.starts)

    def seconds_of_each(self) -> float | None:
        """The part of the budget that each model gets."""
        if self.budget is None:
            return None
        from highrank.training.budget import parse_duration

        return parse_duration(self.budget) / (self.seeds * len(self.variants))

    @property
    def stage(self) -> StageConfig:
        """How each model is trained: the average is of about the last quarter of the steps."""
        return StageConfig(
            optimizer="adamw",
            lr=self.lr,
            weight_decay=self.weight_decay,
            clip=1.0,
            warmup_steps=50,
            average_power=3.0,
        )
