"""A run's learning curve, from its metrics."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from highrank.reports.charts import Axis, Lines, Series, draw, save_png
from highrank.reports.theme import Style

TRAIN = Style("series-1", marker="o", is_dashed=True)
VALID = Style("series-3", marker="D")


def learning_curve(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG of train and valid perplexity against the tokens read, in millions."""
    epochs = [line for line in metrics if line["event"] == "epoch"]
    if not epochs:
        raise ValueError("a learning curve must have at least one validation, got none")
    tokens = [line["tokens"] / 1e6 for line in epochs]
    series = tuple(
        Series(label=label, x=tokens, y=[math.exp(line[key]) for line in epochs], style=style)
        for label, key, style in (
            ("train, with dropout", "train_loss", TRAIN),
            ("valid", "valid_loss", VALID),
        )
    )
    chart = Lines(
        series=series,
        x=Axis(label="million tokens read"),
        y=Axis(label="perplexity", is_log=True),
    )
    save_png(draw(chart, size=(7, 4), margin=0.1), path)
