"""A run's time: what was spent, what is left of a budget, and how fast it goes."""

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.evaluation.static import evaluate
from highrank.models.language_model import LanguageModel

# Their mean is the speed; a single one says little.
NUM_TIMED_WINDOWS = 50
# Of the test split, to find out how long the whole will take; and of each stream at least.
NUM_TIMED_TOKENS, NUM_TIMED_ROWS = 500, 20


class Clock:
    """Seconds of a run over all its sessions, and the budget of them.

    Args:
        num_valid: tokens of a validation.
    """

    def __init__(self, num_valid: int) -> None:
        self.num_valid = num_valid
        self.budget: float | None = None
        self.seconds, self.validation_seconds = 0.0, 0.0
        # `seconds` when this session began.
        self.session_start = 0.0
        # Of the windows alone: what training takes of the processor, whatever else it does.
        self.window_seconds, self.cpu_seconds = 0.0, 0.0
        # Of the windows, those in which the training had no core, because others had it.
        self.waiting_seconds = 0.0
        # Of the windows, before their batch was there.
        self.data_seconds = 0.0
        self.ended_budget: float | None = None
        self.is_warm = False
        self.furthest = 0.0
        # Tokens and seconds of each.
        self.windows: deque[tuple[int, float]] = deque(maxlen=NUM_TIMED_WINDOWS)

    @property
    def speed(self) -> float | None:
        """Tokens a second of the last windows of training; None if none was timed."""
        elapsed = sum(seconds for _, seconds in self.windows)
        # A coarse clock may not have moved.
        return sum(tokens for tokens, _ in self.windows) / elapsed if elapsed > 0 else None

    def start_session(self) -> None:
        self.session_start = self.seconds

    def add_rest(self, elapsed: float) -> None:
        """Count what neither a window nor a validation did: saving, logging, a busy machine.

        Args:
            elapsed: seconds since the session began.
        """
        self.seconds = max(self.seconds, self.session_start + elapsed)

    def add_preparation(self, seconds: float, cpu_seconds: float) -> None:
        """Count what came before the first window, such as counting n-grams, as training."""
        self.seconds += seconds
        self.window_seconds += seconds
        self.cpu_seconds += cpu_seconds

    def add_window(
        self,
        tokens: int,
        seconds: float,
        cpu_seconds: float = 0.0,
        thread_seconds: float | None = None,
    ) -> None:
        """Count a step of training.

        Args:
            cpu_seconds: of all threads.
            thread_seconds: CPU time of the thread that trains. On a CPU it never sleeps in a
                window: the rest of `seconds` it waited for a core. None if it is not known.
        """
        self.seconds += seconds
        self.window_seconds += seconds
        self.cpu_seconds += cpu_seconds
        if thread_seconds is not None:
            self.waiting_seconds += max(0.0, seconds - thread_seconds)
        # The first of a session takes longer than any other.
        if self.is_warm:
            self.windows.append((tokens, seconds))
        self.is_warm = True

    def spent(self) -> dict[str, float]:
        """Seconds by the wall clock, of the processor, and waiting for batches, for the log."""
        names = ("seconds", "cpu_seconds", "data_seconds")
        return {name: round(getattr(self, name), 3) for name in names}

    @property
    def waiting_fraction(self) -> float:
        """The fraction of the training's time in which other processes had its core."""
        return self.waiting_seconds / self.window_seconds if self.window_seconds > 0 else 0.0

    def add_validation(self, seconds: float) -> None:
        self.seconds += seconds
        self.validation_seconds = seconds

    @property
    def reserve(self) -> float:
        """Seconds to keep for the last validation: as long as the one before it took.

        Where there was none, a token takes at most as long as in training.
        """
        if self.validation_seconds > 0 or self.speed is None:
            return self.validation_seconds
        return self.num_valid / self.speed

    def progress(self) -> float:
        """The fraction of the time before the last validation that is spent; 0 without a budget.

        It never goes back, though what is kept for the validation changes.
        """
        if self.budget is None:
            return 0.0
        now = min(1.0, self.seconds / max(1e-9, self.budget - self.reserve))
        self.furthest = max(self.furthest, now)
        return self.furthest

    @property
    def has_ended(self) -> bool:
        """Whether the last validation of this budget is done."""
        return self.budget is not None and self.budget == self.ended_budget

    def is_over(self) -> bool:
        """Whether it is time for the last validation, or was."""
        if self.budget is None:
            return False
        # A run that this budget has ended stays so, though its last validation was quick.
        return self.has_ended or self.seconds + self.reserve >= self.budget

    def end(self) -> None:
        """Note that the last validation of this budget is done."""
        self.ended_budget = self.budget

    def state_dict(self) -> dict[str, Any]:
        names = ("seconds", "validation_seconds", "budget", "ended_budget")
        more = ("furthest", "window_seconds", "cpu_seconds", "waiting_seconds", "data_seconds")
        return {name: getattr(self, name) for name in (*names, *more)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume, with the budget that there was."""
        for name, value in state.items():
            setattr(self, name, value)

    def set_budget(self, budget: float | None) -> None:
        """Set another budget, unless it is the one that there was."""
        if budget != self.budget:
            self.budget, self.furthest = budget, 0.0


def read_clocks() -> tuple[float, float, float]:
    """Seconds of the wall clock, and CPU time of the process and of this thread."""
    return time.monotonic(), time.process_time(), time.thread_time()


def seconds_since(start: tuple[float, float, float]) -> tuple[float, float, float]:
    """The seconds of each clock since `start` was read."""
    wall, cpu, thread = read_clocks()
    return wall - start[0], cpu - start[1], thread - start[2]


SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
LONGEST = 1e9


def parse_duration(text: str) -> float:
    """Seconds of a duration as people write it: 90s, 20m, 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is not None and not match[2]:
        raise ValueError(f"--budget must have a unit, such as 5m or 300s, got {text}")
    if match is None or not 0 < float(match[1]) < LONGEST:
        raise ValueError(f"a duration must be like 90s, 20m or 1.5h, got {text!r}")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]


def seconds_of_test(
    model: LanguageModel,
    test: NDArray[np.integer],
    batch_size: int,
    clock: Callable[[], float] = time.monotonic,
    sentence_end: int | None = None,
) -> float:
    """Seconds that the test at the end will take, estimated from a short piece of it.

    Args:
        model: as the run will train it.
        test: the test split.
        clock: returns seconds.
        sentence_end: as in `evaluate`.
    """
    piece = test[: max(NUM_TIMED_TOKENS, NUM_TIMED_ROWS * batch_size)]
    # What is slow the first time is not slow in the test.
    evaluate(model, piece[: NUM_TIMED_ROWS * batch_size], batch_size, sentence_end=sentence_end)
    start = clock()
    evaluate(model, piece, batch_size, sentence_end=sentence_end)
    return (clock() - start) * len(test) / len(piece)
