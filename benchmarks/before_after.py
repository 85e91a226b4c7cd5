"""`highrank train TEXT --budget …` by an earlier version and by this one: same text, same cores.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py my.txt /tmp/before 5m 1h --threads 1

Each version prepares the text for itself, by its own defaults, and evaluates its run on test as one
stream. The versions take turns; a run that was stopped continues, and one that is finished is not
trained again.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from highrank.cli.console import show
from highrank.files import read_json, write_atomically
from highrank.report.formats import make_table

HERE = Path(__file__).parent.parent


def before_after(
    text: Annotated[Path, tyro.conf.Positional],
    before: Annotated[Path, tyro.conf.Positional],
    budgets: Annotated[tuple[str, ...], tyro.conf.Positional],
    /,
    *,
    seeds: int = 1,
    threads: int = 1,
    versions: tuple[Literal["before", "after"], ...] = ("before", "after"),
    runs: Path = Path("runs/before-after"),
    json: bool = False,
) -> None:
    """Train a text with the defaults of two versions, in the same time.

    Args:
        text: A UTF-8 file.
        before: The earlier version's working tree.
        budgets: Such as 5m.
        seeds: Runs of each version and budget.
        threads: Of the matrix multiplies.
        versions: Those to train: two calls with one each, on a core each, take half the time.
        runs: Where the runs and what they have come to go.
        json: Print the numbers as JSON instead of a table.
    """
    known = {"before": before.resolve(), "after": HERE.resolve()}
    trees = {version: known[version] for version in versions}
    rows = []
    for budget, seed, (version, tree) in product(budgets, range(seeds), trees.items()):
        done = runs.resolve() / f"{version}-{budget}-{seed}.json"
        if not done.exists():
            row = {"version": version, "budget": budget, "seed": seed}
            row |= _measured(tree, done.with_suffix(""), text.resolve(), row, threads)
            _write(done, row)
        rows.append(dict(read_json(done)))
    show(rows, _table, json=json)


def _measured(
    tree: Path, folder: Path, text: Path, row: dict[str, Any], threads: int
) -> dict[str, Any]:
    """Train, or resume, by the version in a tree; evaluate on test."""
    shared = ("--threads", str(threads), "--json")
    new = (str(text), "--budget", row["budget"], "--seed", str(row["seed"]), "--out", str(folder))
    is_begun = (folder / "trainer.pt").exists()
    start = ("--resume", str(folder)) if is_begun else new
    version = row["version"]
    trained = _run(tree, version, folder.parent, ("train", *start, "--no-test", *shared))
    evaluate = ("evaluate", str(folder), "--split", "test", "--batch-size", "1", *shared)
    (result,) = _run(tree, version, folder.parent, evaluate)["results"]
    config = read_json(folder / "config.json")
    return {
        "environment": result["environment"],
        "head": config["head"]["kind"],
        "layers": config["model"]["options"]["hidden_sizes"],
        "num_tokens": trained["num_tokens"],
        "valid": trained["valid"]["perplexity"],
        "test": result["value"],
    }


def _run(tree: Path, version: str, runs: Path, command: tuple[str, ...]) -> Any:
    print("highrank", *command, file=sys.stderr, flush=True)
    runs.mkdir(parents=True, exist_ok=True)
    # What one version has prepared, another cannot always read.
    cache = runs / f"cache-{version}"
    where = {"PYTHONPATH": str(tree / "src"), "HIGHRANK_CACHE": str(cache)}
    call = [sys.executable, "-m", "highrank", *command]
    done = subprocess.run(
        call, env=os.environ | where, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def _write(path: Path, row: dict[str, Any]) -> None:
    text = json.dumps(row, indent=2) + "\n"
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = make_table(("budget", "version", "head"), ("layers", "tokens", "valid", "test"))
    for row in rows:
        numbers = (f"{row['num_tokens']:,}", f"{row['valid']:.2f}", f"{row['test']:.2f}")
        layers = "-".join(map(str, row["layers"]))
        table.add_row(row["budget"], row["version"], row["head"], layers, *numbers)
    return table


if __name__ == "__main__":
    tyro.cli(before_after)
