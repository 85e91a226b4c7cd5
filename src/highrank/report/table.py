"""One look for the tables that commands print."""

from collections.abc import Iterable

from rich import box
from rich.table import Table


def make_table(
    text: Iterable[str],
    numbers: Iterable[str] = (),
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table without rows.

    Args:
        text: titles of the first columns; long cells are folded, never cut.
        numbers: titles of the columns after them, aligned to the right.
    """
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in text:
        table.add_column(name, overflow="fold", min_width=len(name))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
