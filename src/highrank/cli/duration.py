"""Durations as people write them: 90s, 20m, 1.5h."""

import re

SECONDS = {"s": 1, "m": 60, "h": 3600, "": 1}


def seconds(text: str) -> float:
    """The duration in seconds; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"a duration must be like 90s, 20m or 1.5h, got {text!r}")
    return float(match[1]) * SECONDS[match[2]]
