"""Time of `head(hidden)` and `head.predict(hidden)` against a plain loop over chunks of tokens.

    python benchmarks/prediction.py --threads 1

The head is one softmax. N tokens, E embedding size, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from highrank import Softmax
from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.progress import OnProgress
from highrank.studies.bench.harness import BenchResult, make_variants, measure
from highrank.studies.bench.page import bench_table

WAYS = {"head(hidden)": "log_prob", "head.predict(hidden)": "predict"}
LOOP_ROWS = 64
TINY = (8, 100, 8)


def prediction(
    *,
    tokens: int = 256,
    vocab_size: int = 262_144,
    size: int = 64,
    rounds: int = 5,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare a head's log-probabilities and predictions with a loop.

    Args:
        tokens: N.
        vocab_size: V.
        size: E, of hidden states and output embedding.
        rounds: How often each variant's time is taken; the best counts.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    with progress("Measuring predictions") as on_progress:
        result = run((tokens, vocab_size, size), rounds, on_progress)
    show(result, bench_table, json=json)


def run(shape: tuple[int, int, int], rounds: int, on_progress: OnProgress) -> BenchResult:
    return measure(
        {
            title: make_variants(prepare, ("loop", "head"), (way, *shape), (way, *TINY))
            for title, way in WAYS.items()
        },
        title=f"Predictions: N = {shape[0]:,}, V = {shape[1]:,}, E = {shape[2]}, K = 1",
        method=f"Float32, without gradients. loop: F.linear on {LOOP_ROWS} tokens at a time.",
        baselines=("loop",),
        rounds=rounds,
        on_progress=on_progress,
    )


def prepare(name: str, way: str, N: int, V: int, E: int) -> Callable[[], float]:
    torch.manual_seed(0)
    head, hidden = Softmax(E, V).eval(), torch.randn(N, E)

    def by_loop(rows: Tensor) -> Tensor:
        logits = F.linear(rows, head.weight, head.bias)  # (n, V)
        return logits.argmax(-1) if way == "predict" else logits.log_softmax(-1)

    @torch.no_grad()
    def work() -> float:
        if name == "loop":
            found = torch.cat([by_loop(rows) for rows in hidden.split(LOOP_ROWS)])
        else:
            found = head.predict(hidden) if way == "predict" else head(hidden)
        return float(found[-1].sum())

    return work


if __name__ == "__main__":
    tyro.cli(prediction, config=(tyro.conf.FlagCreatePairsOff,))
