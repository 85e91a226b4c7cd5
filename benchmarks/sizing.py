"""Is the width that `--budget` chooses the best one? Several widths, texts and budgets.

    python benchmarks/sizing.py penn-treebank sotu --held-out dailydialog --minutes 1 5 --threads 1

Each width is trained for minutes of CPU time, with the dropout, rate and warm-up that go with it.
Then the rule's two numbers are fitted on all texts that are not held out. Regret is what the width
that a rule takes loses against the best one. A run that was stopped continues.
"""

import json
import math
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import tyro
from rich.table import Table

from highrank import presets
from highrank.build import CheckedRun, check_run
from highrank.cli.console import Threads, progress, show
from highrank.data.catalog import corpus_option
from highrank.data.corpus import Corpus
from highrank.data.prepare import resolve_corpus
from highrank.environment import set_threads
from highrank.files import read_json, write_atomically
from highrank.presets import sizing as rules
from highrank.presets.dropout import weights_of
from highrank.presets.small import fitted
from highrank.report.formats import make_table
from highrank.run.configuration import is_run, read_config
from highrank.training.session import Session
from highrank.training.speed import tokens_per_second

Row = dict[str, Any]
DONE = "sizing.json"
# Runs of which one width is taken.
GROUP = ("text", "seconds", "seed", "held_out")
# The rule's numbers now, and what is tried.
RULE = (rules.TOKENS_PER_WEIGHT, rules.WEIGHTS_PER_TOKEN)
GRID = tuple(product((0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)))


def sizing(
    texts: Annotated[tuple[str, ...], tyro.conf.Positional],
    /,
    *,
    held_out: tuple[str, ...] = (),
    minutes: tuple[float, ...] = (1.0,),
    widths: tuple[int, ...] = (64, 128, 256),
    seed: int = 0,
    runs: Path = Path("runs/sizing"),
    out: Path = Path("sizing.json"),
    threads: Threads = 1,
    json: bool = False,
) -> None:
    """Train texts at widths for budgets, and fit the rule for sizes.

    Args:
        texts: Names or paths.
        held_out: Others, on which the fitted rule is judged.
        minutes: CPU minutes of training; the validation comes on top.
        widths: Of the LSTM's first layer.
        seed: Of weights and batches.
        runs: Where the runs go.
        out: JSON of all that is finished.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    set_threads(threads)
    names = {}
    for text in (*texts, *held_out):
        corpus = resolve_corpus(text, progress)
        names[corpus.name] = text in held_out
        for number, width in product(minutes, widths):
            folder = runs / f"{corpus.name}-{number:g}m-{width}-{seed}"
            _train(folder, corpus, 60 * number, width, seed)
    found: list[Row] = [dict(read_json(path)) for path in runs.glob(f"*/{DONE}")]
    rows = [one | {"held_out": names[one["text"]]} for one in found if one["text"] in names]
    rows.sort(key=lambda row: [row[name] for name in (*GROUP, "width")])
    seen = [row for row in rows if not row["held_out"]]
    best = min(GRID, key=lambda rule: _loss(seen, rule)) if seen else RULE
    result = {"rows": rows, "rule": _judged(rows, RULE), "fitted": _judged(rows, best)}
    _write(out, result)
    show(result, _table, json=json)


def _train(folder: Path, corpus: Corpus, seconds: float, width: int, seed: int) -> None:
    """Train a run and write its numbers, unless it is finished."""
    if (folder / DONE).exists():
        return
    run = _checked(folder, corpus, seconds, width, seed)
    with closing(Session(run, folder)) as session:
        session.go(pause_when=lambda: session.clock.cpu_seconds >= seconds)
        if session.stop_signal is not None:
            raise KeyboardInterrupt
        session.validate()
        sizes = {"num_train": len(corpus.split("train")), "num_tokens": session.num_tokens}
        row = {"text": corpus.name, "width": width, "seconds": seconds, "seed": seed, **sizes}
        row |= {"weights": weights_of(run.config), "perplexity": math.exp(session.best)}
    _write(folder / DONE, row)


def _checked(folder: Path, corpus: Corpus, seconds: float, width: int, seed: int) -> CheckedRun:
    if is_run(folder):
        return check_run(read_config(folder), corpus)
    num_train = len(corpus.split("train"))
    small = replace(presets.get("small"), seed=seed, corpus=corpus_option(corpus))
    config = rules.of_width(fitted(small, num_train, has_budget=True), width)
    speed = rules.Speed(1 / tokens_per_second(check_run(config, corpus), seconds), 0.0)
    sized = rules.sized(config, seconds, speed, num_train, {"model.hidden-sizes"})
    return check_run(sized.config, corpus)


def _loss(rows: list[Row], rule: tuple[float, float]) -> tuple[float, float]:
    """The mean regret; of equal ones, how much it changes the rule."""
    regrets = [one["regret"] for one in _judged(rows, rule)["choices"]]
    return fmean(regrets), sum(abs(math.log(a / b)) for a, b in zip(rule, RULE, strict=True))


def _judged(rows: list[Row], rule: tuple[float, float]) -> Row:
    """For each text and budget the width that a rule takes, and what it loses in per cent."""
    groups: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["width"]):
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    choices = []
    for group, some in groups.items():
        sizes = [(row["weights"], row["num_tokens"], row["num_train"]) for row in some]
        suiting = [row for row, size in zip(some, sizes, strict=True) if rules.suits(*size, rule)]
        taken, best = (suiting or some[:1])[-1], min(some, key=lambda row: row["perplexity"])
        choice = dict(zip(GROUP, group, strict=True)) | {"width": taken["width"]}
        regret = 100 * (taken["perplexity"] / best["perplexity"] - 1)
        choices.append({**choice, "best": best["width"], "regret": regret})
    return {"tokens_per_weight": rule[0], "weights_per_token": rule[1], "choices": choices}


def _write(path: Path, content: Any) -> None:
    write_atomically(path, lambda new: new.write_text(json.dumps(content, indent=2), "utf-8"))


def _table(found: Row) -> Table:
    """A row for each run; of the widths that a rule takes, what they lose against the best."""
    table = make_table(("text", "minutes"), ("width", "tokens", "valid", "rule", "fitted"))
    for row in found["rows"]:
        same = {key: row[key] for key in (*GROUP, "width")}
        regrets = [
            next((f"{c['regret']:+.1f} %" for c in found[n]["choices"] if c | same == c), "")
            for n in ("rule", "fitted")
        ]
        name = row["text"] + " (held out)" * row["held_out"]
        values = (f"{row['seconds'] / 60:g}", str(row["width"]), f"{row['num_tokens']:,}")
        table.add_row(name, *values, f"{row['perplexity']:.2f}", *regrets)
    return table


if __name__ == "__main__":
    tyro.cli(sizing)
