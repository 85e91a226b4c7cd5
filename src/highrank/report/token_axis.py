"""Axes of tokens: a run may have read thousands of them, or a billion."""

from collections.abc import Sequence
from dataclasses import replace

from highrank.report.figure import Axis, Lines, Series

# Beyond the first, an axis counts by the second, and says so.
UNITS = ((1e6, 1e6, "million "), (1e4, 1e3, "thousand "), (0.0, 1.0, ""))


def against_tokens(
    series: Sequence[Series], y: Axis, *, what: str = "tokens", is_log: bool = False
) -> Lines:
    """Lines whose x are tokens, drawn in tokens, thousands or millions, as the largest asks.

    Args:
        what: is counted, such as "target tokens".
    """
    largest = max((max(one.x) for one in series if len(one.x)), default=0.0)
    size, name = next((size, name) for least, size, name in UNITS if largest >= least)
    scaled = tuple(replace(one, x=[tokens / size for tokens in one.x]) for one in series)
    return Lines(series=scaled, x=Axis(label=f"{name}{what}", is_log=is_log), y=y)
