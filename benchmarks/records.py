"""Test perplexity on Penn Treebank after so many minutes, static and with dynamic evaluation.

    python benchmarks/records.py 1 5 60 --threads 2

Each is `highrank train --corpus penn-treebank --budget …`, whose sizes follow the budget, and then
`highrank evaluate --all` on one stream. A run that was stopped continues; one that is finished is
not trained again.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from highrank.cli.console import show
from highrank.files import read_json, write_atomically
from highrank.report.formats import make_table

HIGHRANK = (sys.executable, "-m", "highrank")
CORPUS = "penn-treebank"


def records(
    minutes: Annotated[tuple[float, ...], tyro.conf.Positional],
    /,
    *,
    threads: int = 2,
    seed: int = 0,
    runs: Path = Path("runs"),
    out: Path = Path("records.json"),
    options: str = "",
    json: bool = False,
) -> None:
    """Train and evaluate for each number of minutes; validation is part of them, the test is not.

    Args:
        minutes: Budgets.
        threads: Of the matrix multiplies.
        seed: Of the weights and batches.
        runs: Where the runs go.
        out: JSON of all that is finished.
        options: Further ones of `highrank train`: --options="--train.lr 0.01".
        json: Print the results as JSON.
    """
    found: list[dict[str, Any]] = []
    for number in minutes:
        folder = runs / f"record-{CORPUS}-{number:g}m-{seed}"
        found.append(_record(folder, number, threads, seed, shlex.split(options)))
        _write(out, found)
    show(found, _table, json=json)


def _record(
    folder: Path, minutes: float, threads: int, seed: int, options: list[str]
) -> dict[str, Any]:
    command: tuple[str, ...]
    shared = ("--threads", str(threads), "--json")
    if (folder / "trainer.pt").exists():
        command = ("train", "--resume", str(folder), "--no-test", *shared)
    else:
        budget = ("--budget", f"{minutes:g}m", "--seed", str(seed), "--out", str(folder))
        command = ("train", "--corpus", CORPUS, *budget, "--no-test", *shared, *options)
    trained = _run(command)
    methods = ("--all", "--baselines", "--dynamic.segment", "20", "--split", "test")
    evaluated = _run(("evaluate", str(folder), *methods, *shared))
    return {
        "minutes": minutes,
        "threads": threads,
        "command": " ".join(("highrank", *command)),
        "config": read_json(folder / "config.json"),
        "trained": trained,
        "results": evaluated["results"],
    }


def _run(command: tuple[str, ...]) -> Any:
    print("highrank", *command, file=sys.stderr, flush=True)
    done = subprocess.run([*HIGHRANK, *command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _write(out: Path, found: list[dict[str, Any]]) -> None:
    text = json.dumps(found, indent=2) + "\n"
    write_atomically(out, lambda new: new.write_text(text, encoding="utf-8"))


def _table(found: list[dict[str, Any]]) -> Table:
    """A row for each budget; perplexities are of test, as one stream."""
    methods = list(dict.fromkeys(one["method"] for row in found for one in row["results"]))
    table = make_table(("min",), ("tokens", "valid", *methods))
    for row in found:
        values = {one["method"]: f"{one['value']:.2f}" for one in row["results"]}
        trained = row["trained"]
        table.add_row(
            f"{row['minutes']:g}",
            f"{trained['num_tokens']:,}",
            f"{trained['valid']['perplexity']:.2f}",
            *(values.get(method, "–") for method in methods),
        )
    return table


if __name__ == "__main__":
    tyro.cli(records)
