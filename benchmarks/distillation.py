"""What a softmax loses of a mixture that is distilled into it, beside one that learns the text.

    python benchmarks/distillation.py runs/ptb-small-mos-0 --threads 1

Students see the hidden states of its network, which stays as it is, and start with its output
embedding and the mean of its contexts. `examples/distil_language.py` has an exact language, whose
floor is known. D hidden size, N tokens.
"""

import math
from functools import cache
from json import dumps
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import tyro
from rich.table import Table
from torch import Tensor

from highrank import Softmax, head_kl
from highrank.analysis.contrasts import t_quantile
from highrank.cli.console import Threads, show
from highrank.data.batches import Streams, windows
from highrank.environment import set_threads
from highrank.files import read_json, write_atomically
from highrank.models.language_model import LanguageModel
from highrank.report.formats import make_table
from highrank.run.loading import load_run

BATCH_SIZE, NUM_STREAMS, MOST_TOKENS = 256, 20, {"train": 200_000, "test": 20_000}
MIXTURE, TEXT, DISTILLED = "the mixture", "the text", "distilled"
# The size of a student's contexts in those of the mixture's, and what it learns from.
STUDENTS = [(1, TEXT), (1, DISTILLED), (2, TEXT), (2, DISTILLED)]


# Hidden states (N, D) and targets (N,).
Pair = tuple[Tensor, Tensor]


class Scores(NamedTuple):
    nats: float
    """Of a token."""
    divergence: float
    """KL(mixture ‖ student), nats a token."""


def distillation(
    run: tyro.conf.Positional[Path],
    /,
    *,
    steps: int = 300,
    seeds: int = 3,
    state: Path = Path("distillation.json"),
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Distil a mixture into one softmax with contexts of the same size, and of twice it.

    Args:
        run: A trained run with a mixture.
        steps: Of each student's training.
        seeds: Students of each kind.
        state: File with what is done: the same command continues.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    done: dict[str, list[float]] = read_json(state) if state.exists() else {}
    found: dict[str, list[Scores]] = {}
    for seed in range(seeds):
        for factor, way in ((1, MIXTURE), *STUDENTS):
            key = f"{run} {steps} {seed} {factor} {way}"
            if key not in done:
                done[key] = list(taught(run, seed, factor, way, steps))
                write_atomically(state, lambda path: path.write_text(dumps(done)))
            name = way if way == MIXTURE else f"softmax {factor}d, {way}"
            found.setdefault(name, []).append(Scores(*done[key]))
    show({name: summary(scores) for name, scores in found.items()}, table, json=json)


def taught(run: Path, seed: int, factor: int, way: str, steps: int) -> Scores:
    """The scores of a student."""
    teacher, (train, test) = states_of(run)
    if way == MIXTURE:
        return Scores(teacher(*test).loss.item(), 0.0)
    torch.manual_seed(seed)
    size = teacher.weight.shape[1]
    student: Any = Softmax(teacher.hidden_size, teacher.vocab_size, factor * size)
    with torch.no_grad():
        student.weight[:, :size], student.bias[:] = teacher.weight, teacher.bias
        for name, start in teacher.latent.named_parameters():
            part = student.latent.get_parameter(name)[:size]
            part.copy_(start.unflatten(0, (-1, size)).mean(0))

    def loss() -> Tensor:
        drawn = torch.randint(len(train[1]), (BATCH_SIZE,))
        hidden, target = (tensor[drawn] for tensor in train)
        is_text, states = way == TEXT, (student, hidden, teacher, hidden)
        loss: Tensor = student(hidden, target).loss if is_text else head_kl(*states)
        return loss

    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        nats = student(*test).loss.item()
        return Scores(nats, head_kl(student, test[0], teacher, test[0]).item())


@cache
def states_of(run: Path) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """The head of a run, and states (N, D) and targets (N,) of train and of test."""
    loaded = load_run(run)
    splits = [loaded.corpus.split(name)[:most] for name, most in MOST_TOKENS.items()]
    return loaded.model.head, [states(loaded.model, split) for split in splits]


@torch.no_grad()
def states(model: LanguageModel, tokens: Any) -> tuple[Tensor, Tensor]:
    rows, state, found = Streams(tokens, NUM_STREAMS), model.initial_state(NUM_STREAMS), []
    for start, length in windows(len(rows), BATCH_SIZE):
        read = model.read(rows[start : start + length], state)
        state = read.state
        found.append((read.hidden, rows[start + 1 : start + 1 + length]))
    hidden, target = (torch.cat(parts) for parts in zip(*found, strict=True))
    return hidden.flatten(0, 1), target.flatten()


def summary(scores: list[Scores]) -> dict[str, float]:
    """Means over seeds, and half of their intervals of 95 %, by t."""
    found: dict[str, float] = {}
    for name, values in zip(Scores._fields, zip(*scores, strict=True), strict=True):
        found[name], degrees = mean(values), len(values) - 1
        spread = stdev(values) / math.sqrt(len(values)) if degrees else math.nan
        found[f"{name}_half"] = spread * t_quantile(0.975, max(1, degrees))
    return found


def table(result: dict[str, dict[str, float]]) -> Table:
    shown = make_table(("head", "nats", "KL from the mixture"), {}, title="Distillation")
    for name, values in result.items():
        pairs = ((values[key], values[f"{key}_half"]) for key in Scores._fields)
        shown.add_row(name, *(f"{value:.4f} ± {half:.4f}" for value, half in pairs))
    return shown


if __name__ == "__main__":
    tyro.cli(distillation, config=(tyro.conf.FlagCreatePairsOff,))
