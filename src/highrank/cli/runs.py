"""`highrank runs [FOLDER]`: runs, comparisons and finetunings with their perplexities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from highrank.cli.console import as_json, plain_console, wide_console
from highrank.report.formats import count, duration, make_table, printable
from highrank.run.listing import Entry, State, list_runs

NUMBERS = ("valid", "test", "bits/byte", "tokens", "time", "budget", "date")


def runs(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = Path("runs"),
    *,
    json: bool = False,
) -> None:
    """List the runs, comparisons and finetunings of a folder, the newest first.

    valid and test are perplexities, bits/byte those of test or else of valid.

    tokens and time are those of each model's training, budget is that of --budget.

    Args:
        folder: Where they are.
        json: Print everything as JSON.
    """
    found = list_runs(folder)
    if json:
        print(as_json(found))
    elif found:
        wide_console().print(_table(found, folder))
    else:
        plain_console().print(f"No runs in {folder}: `highrank train` makes them in runs/.")


def _table(entries: Sequence[Entry], folder: Path) -> Table:
    """A section for each folder: its name, then a row for each head and method."""
    table = make_table(("head",), NUMBERS, title=printable(str(folder)))
    for entry in entries:
        state = "" if entry.state is State.FINISHED else f" ({entry.state})"
        kind = "" if entry.kind == "run" else f"{entry.kind} on "
        about = entry.problem or f"{kind}{entry.corpus}"
        time = "–" if entry.seconds is None else duration(entry.seconds)
        budget = "–" if entry.budget is None else duration(entry.budget)
        spent = () if entry.problem else (count(entry.tokens), time, budget)
        name = printable(f"{Path(entry.folder).name}{state}: {about}")
        table.add_row(name, "", "", "", *(spent or ("", "", "")), entry.date.split()[0])
        for one in entry.measured:
            method = "" if one.method == "static" else f", {one.method}"
            numbers = (count(one.valid, 2), count(one.test, 2), count(one.bits_per_byte, 3))
            table.add_row(f"  {printable(one.head + method)}", *numbers)
        table.add_section()
    return table
