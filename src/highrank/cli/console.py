"""Shared by all commands: option hints, progress bars, how results are shown and written.

Progress goes to standard error, so that standard output can be piped: a bar on a terminal, plain
lines elsewhere.
"""

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import tyro
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from highrank.files import check_writable, write_atomically
from highrank.progress import OnProgress
from highrank.report.formats import perplexity, printable

if TYPE_CHECKING:
    from highrank.training.outcome import Progress as TrainingProgress


Result = TypeVar("Result")
SECONDS_BETWEEN_LINES = 10.0
# Columns of wide tables where there is no terminal.
WIDTH = 120
COLOUR = re.compile(r"(\x1b\[[\d;]*m)")


def unless_given(default: str, metavar: str | None = None) -> Any:
    """For an option that is None or empty unless it is given: what happens then."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


# Of every command that computes; `highrank.environment.set_threads` takes it.
Threads = Annotated[int | None, unless_given("all cores", "INT")]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that nobody knows; empty if none is like it."""
    close = get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]}?" if close else ""


class SafeConsole(Console):
    """Prints text as it is, but for invisible characters: no file name can move the cursor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def parse(
    kind: Callable[..., Result] | Mapping[str, Callable[..., Result]],
    parser: Callable[..., Any] = tyro.cli,
    **options: Any,
) -> Result:
    """Call a parser of tyro; its errors escape what is invisible in arguments, but its colours."""
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            found: Result = parser(kind, **options)
    finally:
        parts = COLOUR.split(errors.getvalue())
        text = "".join(part if COLOUR.fullmatch(part) else printable(part) for part in parts)
        print(text, end="", file=sys.stderr)
    return found


def plain_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Prints text as it is, or nothing: no colours, no markup, no line breaks of its own."""
    return SafeConsole(stderr=stderr, soft_wrap=True, quiet=quiet)


def wide_console(*, stderr: bool = False) -> Console:
    """Prints text as it is, and wide tables where there is no terminal."""
    console = SafeConsole(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def show(
    result: Result,
    table: Callable[[Result], RenderableType],
    *,
    json: bool,
    page: Path | None = None,
) -> None:
    """Print a result as JSON, or as a table and where its page is."""
    if json:
        print(as_json(result))
        return
    console = SafeConsole()
    console.print(table(result))
    if page is not None:
        console.print(f"The page with pictures: {page.absolute().as_uri()}", soft_wrap=True)


def as_json(result: object, indent: int | None = None) -> str:
    """JSON of dicts, lists and dataclasses, in any nest."""
    return json.dumps(result, default=asdict, indent=indent)


def free_page(stem: str) -> Path:
    """stem.html, or with the first number of which there is neither a page nor its JSON."""
    ends = ("", *(f"-{number}" for number in range(2, 10_000)))
    pages = (Path(f"{stem}{end}.html") for end in ends)
    return next(p for p in pages if not p.exists() and not p.with_suffix(".json").exists())


def check_outputs(page: Path, picture: Path | None = None) -> None:
    """Raise, before any work is done, if a page, its numbers or the picture cannot be written."""
    if page.suffix == ".json":
        raise ValueError(f"out must be a page and not end in .json, got {page}")
    check_writable(page)
    numbers = page.with_suffix(".json")
    if picture is not None and picture.resolve() in (page.resolve(), numbers.resolve()):
        raise ValueError(f"picture must be a file of its own, got {picture}")
    for path in (numbers, picture):
        if path is not None:
            check_writable(path)


def write_outputs(result: object, html: str, page: Path) -> None:
    """Write a result's page, and its numbers beside it as JSON of the same name."""
    numbers = as_json(result, indent=2) + "\n"
    write_atomically(page.with_suffix(".json"), lambda new: new.write_text(numbers, "utf-8"))
    write_atomically(page, lambda new: new.write_text(html, "utf-8"))


class Show(Protocol):
    def __call__(self, fraction: float, text: str, *, title: str, is_due: bool = False) -> None: ...


@contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """Yield a function to be called with the fraction of the work done and what is being done."""
    with _bar(title, is_transient=True) as show:
        yield lambda fraction, text: show(fraction, text, title=title)


@contextmanager
def training_progress() -> "Iterator[Callable[[TrainingProgress], None]]":
    """Yield a function that shows where the training is; each validation is shown."""
    valid_loss: float | None = None
    with _bar("train", is_transient=False) as show:

        def show_training(now: "TrainingProgress") -> None:
            nonlocal valid_loss
            train = f"{perplexity(now.train_loss):.4g}"
            text = f"epoch {now.epoch} step {now.step}: perplexity train {train}"
            if now.valid_loss is not None:
                text += f", valid {perplexity(now.valid_loss):.4g}"
            if now.tokens_per_second is not None:
                text += f"; {now.tokens_per_second:,.0f} tokens/s"
            show(now.fraction, text, title=now.stage, is_due=now.valid_loss != valid_loss)
            valid_loss = now.valid_loss

        yield show_training


@contextmanager
def _bar(title: str, *, is_transient: bool) -> Iterator[Show]:
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} …")
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=is_transient) as bar:
        task = bar.add_task("starting", total=1.0, title=title)

        def show(fraction: float, text: str, *, title: str, is_due: bool = False) -> None:
            if title != bar.tasks[0].fields["title"]:
                # A bar that was full would show no time left for ever.
                bar.reset(task, title=title)
            bar.update(task, completed=fraction, description=text)

        yield show


def _lines(console: Console) -> Show:
    start = last = time.monotonic()

    def show(fraction: float, text: str, *, title: str, is_due: bool = False) -> None:
        nonlocal last
        now = time.monotonic()
        if fraction < 1 and now - last < SECONDS_BETWEEN_LINES and not is_due:
            return
        last = now
        console.print(f"{title} {fraction:4.0%} in {now - start:.0f} s: {text}", soft_wrap=True)

    return show
