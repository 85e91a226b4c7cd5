"""A run's time: what was spent, what is left of a budget, and how fast it goes."""

import re
import time
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.evaluation.static import evaluate
from highrank.models.language_model import LanguageModel

# Their mean is the speed; a single one says little.
NUM_TIMED_WINDOWS = 50
# Of the test split, to find out how long the whole will take.
NUM_TIMED_TOKENS = 500


class Clock:
    """Seconds of training and validation over all sessions, and the budget of them.

    Args:
        budget: seconds; None for no limit.
        num_valid: tokens of a validation.
    """

    def __init__(self, budget: float | None, num_valid: int) -> None:
        self.budget, self.num_valid = budget, num_valid
        self.seconds, self.validation_seconds = 0.0, 0.0
        self.validated_components = 0
        self.ended_budget: float | None = None
        self.is_warm = False
        # Tokens and seconds of each.
        self.windows: deque[tuple[int, float]] = deque(maxlen=NUM_TIMED_WINDOWS)

    @property
    def speed(self) -> float | None:
        """Tokens a second of the last windows of training; None if none was timed."""
        if not self.windows:
            return None
        return sum(tokens for tokens, _ in self.windows) / sum(time for _, time in self.windows)

    def add_window(self, tokens: int, seconds: float) -> None:
        self.seconds += seconds
        # The first of a session takes longer than any other.
        if self.is_warm:
            self.windows.append((tokens, seconds))
        self.is_warm = True

    def add_growth(self, seconds: float) -> None:
        """A window in which the head grew: the speed before it says nothing about the new one."""
        self.seconds += seconds
        self.windows.clear()

    def add_validation(self, seconds: float, num_components: int) -> None:
        self.seconds += seconds
        self.validation_seconds, self.validated_components = seconds, num_components

    def reserve(self, num_components: int) -> float:
        """Seconds to keep for the last validation: as long as the one before it took.

        Where a head of so many components had none, a token takes at most as long as in training.
        """
        if self.validated_components == num_components or self.speed is None:
            return self.validation_seconds
        return max(self.validation_seconds, self.num_valid / self.speed)

    def progress(self, num_components: int) -> float:
        """The fraction of the time before the last validation that is spent; 0 without a budget."""
        if self.budget is None:
            return 0.0
        return min(1.0, self.seconds / max(1e-9, self.budget - self.reserve(num_components)))

    def is_over(self, num_components: int) -> bool:
        """Whether it is time for the last validation, or was."""
        if self.budget is None:
            return False
        # A run that this budget has ended stays so, though its last validation was quick.
        has_ended = self.budget == self.ended_budget
        return has_ended or self.seconds + self.reserve(num_components) >= self.budget

    def end(self) -> None:
        """The last validation of this budget is done."""
        self.ended_budget = self.budget

    def state_dict(self) -> dict[str, Any]:
        names = ("seconds", "validation_seconds", "validated_components", "budget", "ended_budget")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; the old budget holds unless a new one was given."""
        new_budget = self.budget
        for name, value in state.items():
            setattr(self, name, value)
        if new_budget is not None:
            self.budget = new_budget


SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "": 1}


def parse_duration(text: str) -> float:
    """Seconds of a duration as people write it: 90s, 20m, 1.5h; a bare number is in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"a duration must be like 90s, 20m or 1.5h, got {text!r}")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]


def without_test(budget: float, model: LanguageModel, test: NDArray[np.integer]) -> float:
    """Seconds of the budget that are left for training when the test at the end has its own.

    Args:
        model: as the run will train it; a piece of the test is timed on it.
        test: the test split.
    """
    piece = test[:NUM_TIMED_TOKENS]
    # What is slow the first time is not slow in the test.
    evaluate(model, piece[:20], batch_size=1)
    start = time.monotonic()
    evaluate(model, piece, batch_size=1)
    test_seconds = (time.monotonic() - start) * len(test) / len(piece)
    if budget <= test_seconds:
        raise ValueError(
            f"budget must be longer than the test, which takes about {test_seconds:.0f} s here, "
            f"got {budget:g} s"
        )
    return budget - test_seconds
