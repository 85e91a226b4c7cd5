"""How a training session goes and ends: what progress bars show and what callers get."""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto


class Reason(StrEnum):
    """Why a session ended."""

    FINISHED = "finished"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"


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
    """How a session ended."""

    reason: Reason
    best_valid_loss: float
    num_tokens: int
    """Trained on, over all epochs."""
    seconds: float
    """Spent, over all sessions."""


class Action(Enum):
    """What a session does next."""

    STEP = auto()
    VALIDATE = auto()
    VALIDATE_AND_END = auto()
    PAUSE = auto()
    END = auto()
