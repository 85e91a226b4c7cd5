"""Signals that ask a run to stop: Ctrl-C, and what schedulers and lost terminals send."""

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Windows has no SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Stopped(KeyboardInterrupt):
    """A signal came; its number is the argument."""


@contextmanager
def listening(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call the function with each of these signals; after one, Ctrl-C acts as it did before.

    The others may come twice, as when a terminal closes: they stay caught until the end.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def act(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
        _leave_lost_terminal()
        on_signal(number)

    # What nohup started outlives its terminal.
    caught = [n for n in SIGNALS if n == signal.SIGINT or before[n] is not signal.SIG_IGN]
    try:
        for number in caught:
            signal.signal(number, act)
    except ValueError:
        # Signals belong to the main thread; elsewhere they do what they always do.
        yield
        return
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def stop(number: int) -> None:
    """Raise `Stopped`: for work that has nothing to save."""
    raise Stopped(number)


def _leave_lost_terminal() -> None:
    """Send what is printed nowhere once the terminal is gone: to print there is an error."""
    for handle in (1, 2):
        try:
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)
        except OSError:
            pass
