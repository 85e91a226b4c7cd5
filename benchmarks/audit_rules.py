"""Which measure of one softmax predicts what a mixture would win?

    python benchmarks/audit_rules.py --threads 1 --budget 60m

Small models are trained with one softmax over d numbers, with a mixture of four softmaxes, and with
a mixture of contexts, which has the mixture's parameters and the bound of one softmax; some with
the default head of `highrank train`, and an adaptive mixture in place of its softmax. Measures are
of the softmax model alone, the fit is that of `highrank audit`. A file of JSON for each model; what
is there is not done again.
"""

import json as json_module
import time
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Group
from rich.table import Table
from rules.judge import COLUMNS, by_fit, gain, over_own, scores, won_by_fit
from rules.measures import measure
from rules.models import Case, about, audited_model, cases, losses, open_corpus, train_all

from highrank.cli.console import Threads, show
from highrank.environment import set_threads
from highrank.files import write_atomically
from highrank.report.formats import make_table
from highrank.training.budget import parse_duration

KEYS = (
    "raw 1e-03",
    "raw 1e-04",
    "centred 1e-03",
    "centred entropy",
    "weighted 1e-03",
    "weighted entropy",
    "lost without 25%",
    "lost without 50%",
    "fit gain",
)


def audit_rules(
    *,
    folder: Path = Path("runs/audit-rules"),
    data: Path = Path("data"),
    budget: str = "60m",
    most: int = 1000,
    repeats: int = 2,
    steps: int | None = None,
    again: bool = False,
    threads: Threads = None,
    json: bool = False,
) -> None:
    """Train models, measure them, and count how often each rule is right.

    Args:
        folder: For the weights and the numbers of each model.
        data: Folder with dailydialog and penn-treebank, for models of text.
        budget: No further model is begun after this time: 90s, 60m; 0s prints the table only.
        most: Models at most.
        repeats: Trainings of each head; the mean of their losses counts.
        steps: Of each training, instead of 500 or 600.
        again: Measure models again that are trained.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    set_threads(threads)
    end = time.monotonic() + (0.0 if budget == "0s" else parse_duration(budget))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, repeats + 1):
        for case in cases(steps)[:most]:
            if time.monotonic() < end:
                finish(case, folder, data, number, again=again and number == 1)
    done = [json_module.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    done = [model for model in done if "measures" in model]
    rules = {name: dict(found) for name, found in scores(done, KEYS).items()}
    show({"models": done, "rules": rules}, tables, json=json)


def finish(case: Case, folder: Path, data: Path, number: int, *, again: bool) -> None:
    """Train a model so many times, and measure the first, where that is not done."""
    numbers, weights = folder / f"{case.name}.json", folder / f"{case.name}.pt"
    found = json_module.loads(numbers.read_text()) if numbers.exists() else {"nats": []}
    if len(found["nats"]) >= number and "measures" in found and not again:
        return
    corpus = open_corpus(case, data)
    for repeat in range(len(found["nats"]), number):
        models = train_all(case, corpus, repeat)
        if repeat == 0:
            found = about(case, corpus, models)
            torch.save(models["audited"].state_dict(), weights)
        found["nats"].append(losses(models, corpus))
        write(found, numbers)
    if "measures" not in found or again:
        model = audited_model(case, corpus)
        model.load_state_dict(torch.load(weights))
        found["measures"] = measure(model, corpus)
        write(found, numbers)


def write(found: dict[str, Any], numbers: Path) -> None:
    write_atomically(numbers, lambda new: new.write_text(json_module.dumps(found)))


def tables(result: dict[str, Any]) -> Group:
    columns = ("gain", "over softmax", "fitted, nats", "±", "over own", "answer")
    models = make_table(("model",), columns, title="Models")
    for model in sorted(result["models"], key=gain):
        models.add_row(
            model["name"],
            f"{gain(model):+.1%}",
            f"{gain(model, ('softmax',)):+.1%}",
            f"{won_by_fit(model):+.4f}",
            f"{model['measures']['fit error']:.4f}",
            f"{over_own(model):+.3f}",
            by_fit(model),
        )
    return Group(models, rules_table(result["rules"]))


def rules_table(rules: dict[str, dict[str, int]]) -> Table:
    table = make_table(("rule",), COLUMNS, title="Rules, judged on the second half")
    for name, counts in rules.items():
        table.add_row(name, *(str(counts.get(column, 0)) for column in COLUMNS))
    return table


if __name__ == "__main__":
    tyro.cli(audit_rules, config=(tyro.conf.FlagCreatePairsOff,))
