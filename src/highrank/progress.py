"""Progress of long work, as callbacks; `cli/console.py` shows it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

OnProgress = Callable[[float, str], None]
"""Called with the fraction of the work that is done, and with what is being done."""
ProgressBar = Callable[[str], AbstractContextManager[OnProgress]]
"""Opens a progress bar with a title."""


def silent(_fraction: float, _activity: str) -> None:
    """Show nothing."""


def no_progress(_title: str) -> AbstractContextManager[OnProgress]:
    """Open no progress bar."""
    return nullcontext(silent)
