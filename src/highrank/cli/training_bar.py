"""What is seen while a model trains: a bar on a terminal, a line now and then elsewhere."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from highrank.training.loop import Progress


SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def training_bar() -> Iterator[Callable[["Progress"], None]]:
    """Yield a function that shows progress on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("starting", total=1.0, numbers="", stage="train")

        def show(progress: "Progress") -> None:
            if progress.stage != bar.tasks[0].fields["stage"]:
                # A bar that was full would show no time left for ever.
                bar.reset(task, stage=progress.stage, numbers="")
            bar.update(
                task,
                completed=progress.share,
                description=f"{progress.stage} epoch {progress.epoch} step {progress.step}",
                numbers=_numbers(progress),
            )

        yield show


def _lines(console: Console) -> Callable[["Progress"], None]:
    last, valid = -math.inf, None

    def show(progress: "Progress") -> None:
        nonlocal last, valid
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and progress.valid_loss == valid:
            return
        last, valid = now, progress.valid_loss
        console.print(
            f"{progress.share:4.0%} {progress.stage} epoch {progress.epoch} step {progress.step}: "
            f"{_numbers(progress)}",
            highlight=False,
            soft_wrap=True,
        )

    return show


def _numbers(progress: "Progress") -> str:
    """Perplexities: of training with dropout, of validation as the saved model will have it."""
    valid = "" if progress.valid_loss is None else f", valid {_perplexity(progress.valid_loss)}"
    train, speed = _perplexity(progress.train_loss), progress.tokens_per_second
    pace = "" if speed is None else f"; {speed:,.0f} tokens/s"
    return f"perplexity train {train}{valid}{pace}"


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 700)):.4g}"
