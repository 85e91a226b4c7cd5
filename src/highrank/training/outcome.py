"""Progress and outcome of a training session: for progress bars, and for callers."""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto


class Reason(StrEnum):
    """Why a session ended."""

    FINISHED = "finished"
    NO_BETTER = "no longer better on valid"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The values that a progress bar shows."""

    stage: str
    epoch: int
    step: int
    fraction: float
    """Fraction of the stage that is done."""
    tokens_per_second: float | None
    """Speed of training over the last windows; None before there were two in this session."""
    train_loss: float
    """Mean of the epoch's tokens so far."""
    valid_loss: float | None
    """Loss of the last validation."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a session."""

    reason: Reason
    best_valid_loss: float
    num_tokens: int
    """Tokens trained on, over all epochs."""
    seconds: float
    """Time spent, over all sessions."""


class Action(Enum):
    """The action that a session takes next."""

    STEP = auto()
    VALIDATE = auto()
    VALIDATE_AND_END = auto()
    PAUSE = auto()
    END = auto()
