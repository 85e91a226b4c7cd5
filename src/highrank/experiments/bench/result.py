"""What a benchmark measured: plain data, made by `harness.py`, shown by `reports/bench.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contestant. What could not be measured is None, and `failure` says why."""

    name: str
    note: str
    """What a reader should know of it in this run; empty if nothing."""
    value: float | None
    """What the work returned: the same from all contestants that compute the same thing."""
    times: tuple[float, ...]
    """Seconds, one for each round."""
    best: float | None
    """The lowest of `times`."""
    peak_bytes: int | None
    """Peak memory of the process during the work, above what it was before."""
    time_ratios: dict[str, float]
    """`best` divided by that of each baseline."""
    memory_ratios: dict[str, float]
    """`peak_bytes` divided by that of each baseline."""
    failure: str | None
    """Why it was skipped, or what ended it."""
