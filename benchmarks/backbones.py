"""A training step of each backbone against plain modules of equal size, and generation by length.

    python benchmarks/backbones.py --threads 1

Backbones alone, without head and dropout. T time, B sequences, D hidden size, L layers, V
vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import tyro
from plain.backbones import (
    HEADS,
    KERNEL,
    Embedded,
    PlainConvolutions,
    PlainEncoder,
    PlainLlama,
    PlainLSTM,
)
from torch import nn

from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.models import AWDLSTM, Backbone, GatedCNN, Transformer
from highrank.progress import OnProgress
from highrank.studies.bench.harness import BenchResult, make_variants, measure
from highrank.studies.bench.page import bench_table

V = 1_000
PLAIN, OURS, REMEMBERING = "plain", "ours", "ours, with a memory"
# D, L, T, B.
Size = tuple[int, int, int, int]
TINY: Size = (16, 2, 4, 2)


RELU: dict[str, Any] = {"feedforward": "relu", "norm": "layer"}
# The plain module and ours, of D, L and the memory.
KINDS: dict[str, tuple[Callable[..., nn.Module], Callable[..., Backbone]]] = {
    "AWD-LSTM, nn.LSTM": (
        lambda D, L: PlainLSTM(D, D, L),
        lambda D, L, M: AWDLSTM(V, D, (D,) * L),
    ),
    "Transformer, nn.TransformerEncoderLayer": (
        PlainEncoder,
        lambda D, L, M: Transformer(V, D, D, L, HEADS, memory=M, feedforward_size=4 * D, **RELU),
    ),
    "Transformer, transformers.LlamaModel": (
        PlainLlama,
        lambda D, L, M: Transformer(V, D, D, L, HEADS, memory=M),
    ),
    "gated CNN, nn.Conv1d": (
        PlainConvolutions,
        lambda D, L, M: GatedCNN(V, D, D, L, kernel_size=KERNEL),
    ),
}


def backbones(
    *,
    size: int = 256,
    layers: int = 4,
    window: int = 70,
    batch_size: int = 20,
    lengths: tuple[int, ...] = (250, 500, 1_000, 2_000),
    rounds: int = 5,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare backbones with plain modules, and time generation, one token after the other.

    Args:
        size: D, and the embedding size.
        layers: L.
        window: T, and the memory of the Transformer.
        batch_size: B.
        lengths: Tokens that are generated from the beginning of a text.
        rounds: How often each variant's time is taken; the best counts.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    with progress("Measuring backbones") as on_progress:
        result = run((size, layers, window, batch_size), lengths, rounds, on_progress)
    show(result, bench_table, json=json)


def run(size: Size, lengths: tuple[int, ...], rounds: int, on_progress: OnProgress) -> BenchResult:
    sizes = {kind: ((kind, size), (kind, TINY)) for kind in KINDS}
    ways = {kind: (PLAIN, OURS, REMEMBERING) for kind in KINDS if kind.startswith("Transformer")}
    names = [f"{length} tokens" for length in lengths]
    steps = {
        kind: make_variants(prepare_step, ways.get(kind, (PLAIN, OURS)), *both)
        for kind, both in sizes.items()
    }
    texts = {
        f"generation: {kind.split(',')[0]}": make_variants(prepare_text, names, *both)
        for kind, both in sizes.items()
    }
    return measure(
        steps | texts,
        title=f"Backbones: D = {size[0]}, L = {size[1]}, T = {size[2]}, B = {size[3]}",
        method="Forward and backward pass of a window, float32; generation of one sequence.",
        baselines=(PLAIN, names[0]),
        rounds=rounds,
        on_progress=on_progress,
    )


def prepare_step(way: str, kind: str, size: Size) -> Callable[[], float]:
    """A pass over a window, the first of a text or, with a memory, its second.

    It returns the number of parameters, which shows that sizes are equal.
    """
    D, L, T, B = size
    torch.manual_seed(0)
    tokens, (plain, ours) = torch.randint(V, (T, B)), KINDS[kind]
    model = Embedded(V, D, plain(D, L)) if way == PLAIN else ours(D, L, T)
    state = () if isinstance(model, Embedded) else model.initial_state(B)
    if way == REMEMBERING:
        with torch.no_grad():
            state = model(tokens, state).state

    def work() -> float:
        model.zero_grad()
        model(tokens, state).hidden.square().mean().backward()
        return float(sum(p.numel() for p in model.parameters()))

    return work


def prepare_text(name: str, kind: str, size: Size) -> Callable[[], float]:
    """Read so many tokens, one after the other."""
    D, L, T, _ = size
    torch.manual_seed(0)
    model = KINDS[kind][1](D, L, T).eval()
    tokens = torch.randint(V, (int(name.split()[0]), 1, 1))

    @torch.no_grad()
    def work() -> float:
        state, total = model.initial_state(1), 0.0
        for token in tokens:
            out = model(token, state)
            state, total = out.state, total + float(out.hidden[0, 0, 0])
        return total

    return work


if __name__ == "__main__":
    tyro.cli(backbones, config=(tyro.conf.FlagCreatePairsOff,))
