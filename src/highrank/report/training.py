"""A run's learning curve, from its metrics."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from highrank.report.figure import Axis, Lines, Mark, Series, draw, save_png
from highrank.report.theme import Style

TRAIN = Style("series-1", marker="o", is_dashed=True)
VALID = Style("series-3", marker="D")
# Numbers on the axis of perplexities, times powers of ten.
TICKS = (1, 1.5, 2, 3, 5, 7)


def learning_curve(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the chart as PNG."""
    save_png(draw(learning_chart(metrics), size=(7, 4), margin=0.1), path)


def learning_chart(metrics: Sequence[Mapping[str, Any]]) -> Lines:
    """Train and valid perplexity against the tokens read, and where the head grew."""
    epochs = [line for line in metrics if line["event"] == "epoch"]
    if not epochs:
        raise ValueError("a learning curve must have at least one validation, got none")
    tokens = [line["tokens"] / 1e6 for line in epochs]
    series = tuple(
        Series(
            label=label,
            x=tokens,
            y=[math.exp(min(line[key], 700.0)) for line in epochs],
            style=style,
        )
        for label, key, style in (
            ("train, with dropout", "train_loss", TRAIN),
            ("valid", "valid_loss", VALID),
        )
    )
    return Lines(
        series=series,
        x=Axis(label="million tokens read"),
        y=Axis(label="perplexity", is_log=True, ticks=_ticks(series)),
        marks=tuple(
            Mark(x=line["tokens"] / 1e6, label=f"K = {line['num_components']} from here")
            for line in metrics
            if line["event"] == "grow"
        ),
    )


def _ticks(series: Sequence[Series]) -> tuple[float, ...]:
    """The round numbers within the data and the next ones around it."""
    values = [y for line in series for y in line.y]
    low, high = math.log10(min(values)), math.log10(max(values))
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in TICKS]
    below = [tick for tick in ticks if tick <= min(values)]
    above = [tick for tick in ticks if tick >= max(values)]
    return tuple(tick for tick in ticks if below[-1] <= tick <= above[0])
