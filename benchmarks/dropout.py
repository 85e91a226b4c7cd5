"""How much dropout? One run for each width and dropout, validated at several CPU times.

    python benchmarks/dropout.py penn-treebank --seconds 60 150 --dropouts 0 0.05 0.12 --threads 1

At a constant rate the average of a run may end at any time: one run has the numbers of all
budgets. A run that is finished is not trained again.
"""

import json
import math
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from highrank import presets
from highrank.build import CheckedRun, check_run
from highrank.cli.console import Threads, progress, show
from highrank.config import RunConfig, with_options
from highrank.data.catalog import corpus_option
from highrank.data.prepare import resolve_corpus
from highrank.environment import set_threads
from highrank.files import read_json, write_atomically
from highrank.presets.dropout import PARTS, dropout_of, weights_of
from highrank.presets.sizing import of_width
from highrank.presets.small import ADAMW
from highrank.report.formats import make_table
from highrank.training.session import Session

Row = dict[str, Any]


def dropout(
    text: Annotated[str, tyro.conf.Positional],
    /,
    *,
    seconds: tuple[float, ...] = (20.0, 40.0, 75.0, 150.0),
    widths: tuple[int, ...] = (128, 256),
    dropouts: tuple[float, ...] = (0.1, 0.2, 0.4),
    seed: int = 0,
    out: Path = Path("dropout.json"),
    threads: Threads = 1,
    json: bool = False,
) -> None:
    """Train a text at each width with each dropout, and measure valid.

    Args:
        text: A prepared corpus, or the path of a text.
        seconds: CPU time of training; validations come on top.
        widths: Of the LSTM's first layer.
        dropouts: Of all activations, contexts and recurrent weights; embeddings have a quarter.
        seed: Of weights and batches.
        out: JSON of all that is finished; what it has is not trained again.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    set_threads(threads)
    corpus = resolve_corpus(text, progress)
    small = replace(presets.get("small"), seed=seed, corpus=corpus_option(corpus))
    rows: list[Row] = list(read_json(out)["rows"]) if out.exists() else []
    for p, width in product(dropouts, widths):
        key = {"text": corpus.name, "width": width, "dropout": p, "seed": seed}
        if not any(row | key == row for row in rows):
            run = check_run(_config(of_width(small, width), p), corpus)
            rows += [key | values for values in _curve(run, sorted(seconds))]
            _write(out, {"rows": rows})
    rows.sort(key=lambda row: [row[name] for name in ("text", "width", "seconds", "dropout")])
    show({"rows": rows}, _table, json=json)


def _config(config: RunConfig, p: float) -> RunConfig:
    """The configuration with this dropout, for as long as one likes."""
    model = with_options(config.model, **{name: part * p for name, part in PARTS.items()})
    train = replace(config.train, epochs=ADAMW.epochs)
    return replace(config, model=model, train=train, head=replace(config.head, dropout=p))


def _curve(run: CheckedRun, seconds: Sequence[float]) -> list[Row]:
    """Tokens, perplexity on valid, and what the rule would take, after each of these times."""
    found = []
    num_train = len(run.corpus.split("train"))
    with tempfile.TemporaryDirectory() as folder, closing(Session(run, Path(folder))) as session:
        for number in seconds:
            session.go(pause_when=partial(_has_trained, session, number))
            if session.stop_signal is not None:
                raise KeyboardInterrupt
            session.validate()
            row = {"seconds": number, "num_train": num_train, "num_tokens": session.num_tokens}
            row["weights"] = weights_of(run.config)
            row["rule"] = dropout_of(run.config, session.num_tokens, num_train)
            found.append(row | {"perplexity": math.exp(session.valid_loss or math.nan)})
    return found


def _has_trained(session: Session, seconds: float) -> bool:
    return session.clock.cpu_seconds >= seconds


def _write(path: Path, content: Any) -> None:
    write_atomically(path, lambda new: new.write_text(json.dumps(content, indent=2), "utf-8"))


def _table(found: Row) -> Table:
    """A row for each text, width, time and dropout; epochs, perplexity on valid."""
    table = make_table(("text", "width", "CPU s", "dropout"), ("epochs", "valid", "rule"))
    for row in found["rows"]:
        epochs = f"{row['num_tokens'] / row['num_train']:.1f}"
        key = (row["text"], str(row["width"]), f"{row['seconds']:g}", f"{row['dropout']:g}")
        table.add_row(*key, epochs, f"{row['perplexity']:.2f}", f"{row['rule']:g}")
    return table


if __name__ == "__main__":
    tyro.cli(dropout)
