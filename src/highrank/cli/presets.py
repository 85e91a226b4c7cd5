"""`highrank presets`: the runs that have a name."""

import inspect

from rich.table import Table

from highrank.cli.console import show
from highrank.presets import PRESETS


def presets(*, json: bool = False) -> None:
    """List the presets of `highrank train`, with the numbers of the papers.

    Args:
        json: Print the complete configurations as JSON.
    """
    show({name: make() for name, make in PRESETS.items()}, lambda _: _table(), json=json)


def _table() -> Table:
    table = Table(title="highrank train PRESET", box=None, pad_edge=False, padding=(0, 2))
    for column in ("preset", "corpus", "what it is; perplexities as published"):
        table.add_column(column)
    for name, make in PRESETS.items():
        table.add_row(name, make().corpus, inspect.getdoc(make))
    return table
