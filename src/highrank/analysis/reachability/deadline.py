"""How long deciding words may take."""

import math
from time import monotonic


class OutOfTime(Exception):
    """A word is given up because the time is up, not because it was too close to call."""


class Deadline:
    """So many seconds from now, or never."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self._end = math.inf if seconds is None else monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """inf if there is no limit."""
        return self._end - monotonic()

    @property
    def has_passed(self) -> bool:
        return self.seconds_left <= 0


NEVER = Deadline()
