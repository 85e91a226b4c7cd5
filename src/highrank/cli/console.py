"""How the help shows an option.

One progress bar for every long command: a bar on a terminal, plain lines elsewhere.

It goes to standard error, so that standard output can be piped.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def unless_given(default: str, metavar: str) -> Any:
    """For an option that is None unless it is given: what happens then."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(title: str) -> Iterator[Callable[[float, str], None]]:
    """Yield a function to be called with the share of the work done and what is being done."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield _plain_lines(title, console)
        return
    columns = (
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, title=title)
        yield lambda share, text: bar.update(task, completed=share, description=text)


def _plain_lines(title: str, console: Console) -> Callable[[float, str], None]:
    start = last = time.monotonic()
    console.print(f"{title} …", highlight=False)

    def show(share: float, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if share < 1 and now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        console.print(f"{share:4.0%} in {now - start:.0f} s: {text}", highlight=False)

    return show
