"""From an open session to a result: a budget that includes the test, the training, the test."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from highrank.evaluation.static import ProgressBar, no_progress
from highrank.training.budget import seconds_of_test
from highrank.training.outcome import Progress, Reason
from highrank.training.result import TrainingResult, finish
from highrank.training.session import Session
from highrank.training.signals import listening, stop

# The test is left out if it would take more of the budget.
LARGEST_TEST = 0.5

TrainingProgress = Callable[[], AbstractContextManager[Callable[[Progress], None] | None]]


class Interrupted(Exception):
    """A signal ended the training or the test; the run is saved.

    Args:
        number: of the signal.
        is_in_test: whether the training was over.
    """

    def __init__(self, number: int, is_in_test: bool) -> None:
        super().__init__(number, is_in_test)
        self.number, self.is_in_test = number, is_in_test


def set_budget(
    session: Session, budget: float, test: NDArray[np.integer] | None, test_batch_size: int
) -> float | None:
    """Let a session end in time, the test included.

    Returns the seconds that the test would take if that is too much of the budget: it is then to
    be left out. Otherwise None.
    """
    seconds = 0.0 if test is None else seconds_of_test(session.model, test, test_batch_size)
    if seconds > LARGEST_TEST * budget:
        session.clock.set_budget(budget)
        return seconds
    session.clock.set_budget(budget - seconds)
    return None


def train_and_test(
    session: Session,
    test: NDArray[np.integer] | None,
    test_batch_size: int = 1,
    training_progress: TrainingProgress = nullcontext,
    progress: ProgressBar = no_progress,
) -> TrainingResult:
    """Train to the end and test the best model; raises `Interrupted` or `Diverged`.

    Args:
        test: the test split; None leaves the test out.
        training_progress: opens a progress bar for the training.
        progress: opens one for the test.
    """
    with training_progress() as session.on_progress:
        outcome = session.go()
    if outcome.reason is Reason.INTERRUPTED:
        raise Interrupted(session.stop_signal or signal.SIGINT, is_in_test=False)
    try:
        with listening(stop):
            return finish(session, test, outcome, progress, test_batch_size)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        raise Interrupted(number, is_in_test=True) from None
