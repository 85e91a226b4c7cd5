"""The loss with the vocabulary in two processes against the loss in one.

    python benchmarks/sharded.py --shape ptb

Each process has half of the threads, so that two use what one process with all threads does.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
import tyro
from torch import Tensor

from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import Inputs, Shape, mixture_inputs
from highrank.studies.bench.loss import TOLERANCE, select_shapes
from highrank.studies.bench.page import bench_table, shape_text

NUM_PROCESSES = 2
ONE, ALL_THREADS, SHARDED = "one process", "one process, all threads", "two processes"


def sharded(
    *,
    shape: str = "ptb",
    rounds: int = 5,
    quick: bool = False,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare the loss with the vocabulary in two processes with the loss in one.

    Args:
        shape: ptb, wt2 (the paper's models), gpt2, wide (larger vocabularies).
        rounds: How often each variant's time is taken; the best counts.
        quick: A tenth of the tokens: rough numbers.
        json: Print the numbers as JSON instead of a table.
        threads: Of all processes together.
    """
    set_threads(threads)
    start, (size,) = time.monotonic(), select_shapes([shape], quick)
    with progress("Measuring a sharded vocabulary") as on_progress:
        found = compare(size, rounds, on_progress)
    result = harness.BenchResult(
        title=f"The loss of a sharded vocabulary: {shape_text(size)}",
        method=(
            "One forward and backward pass, float32. Each of two processes has half of the "
            "vocabulary and half of the threads; memory is not measured."
        ),
        baselines=(ONE,),
        rounds=rounds,
        groups=(harness.Group(name="", measurements=found),),
        elapsed=time.monotonic() - start,
    )
    show(result, bench_table, json=json)


def compare(shape: Shape, rounds: int, on_progress: OnProgress) -> tuple[harness.Measurement, ...]:
    """Time and loss of each variant."""
    all_threads = torch.get_num_threads()
    begin = harness.counter(on_progress, (1 + rounds) * 3)
    with team(max(1, all_threads // NUM_PROCESSES)) as ask:
        works: dict[str, Callable[[], float]] = {
            ONE: partial(loss_in_one_process, shape, max(1, all_threads // NUM_PROCESSES)),
            ALL_THREADS: partial(loss_in_one_process, shape, all_threads),
            SHARDED: partial(ask, sharded_loss, shape),
        }
        values = {}
        for name, work in works.items():
            begin(f"warm-up of {name}")
            values[name] = work()
            if not math.isclose(values[name], values[ONE], rel_tol=TOLERANCE):
                raise RuntimeError(f"all variants must have the same loss, got {values}")
        times = harness.take_times(works, rounds, lambda name: begin(f"time of {name}"))
    torch.set_num_threads(all_threads)
    variants = [harness.Variant(name=name, prepare=lambda: float) for name in works]
    return harness.summarise(variants, (ONE,), values=values, times=times, peaks={})


def loss_in_one_process(shape: Shape, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    return loss_and_gradients(*mixture_inputs(shape))


def sharded_loss(shape: Shape) -> float:
    return loss_and_gradients(*own_inputs(shape), shard=own_shard(shape))


def loss_and_gradients(*inputs: Tensor, shard: tuple[int, int] | None = None) -> float:
    context, log_weight, weight, bias, target = inputs
    loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias, shard=shard)
    torch.autograd.grad(loss, inputs[:4])
    return loss.item()


@lru_cache(maxsize=1)
def own_inputs(shape: Shape) -> Inputs:
    """Inputs with this process's part of the vocabulary."""
    inputs, own = mixture_inputs(shape), slice(*own_shard(shape))
    weight, bias = (x.detach()[own].clone().requires_grad_() for x in inputs[2:4])
    return inputs._replace(weight=weight, bias=bias)


def own_shard(shape: Shape) -> tuple[int, int]:
    rank, size = dist.get_rank(), shape.vocab_size
    return size * rank // NUM_PROCESSES, size * (rank + 1) // NUM_PROCESSES


@contextmanager
def team(num_threads: int) -> Iterator[Callable[..., float]]:
    """Processes that are joined by gloo; a function that lets all of them call another."""
    spawn = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pools = []
        for rank in range(NUM_PROCESSES):
            pool = ProcessPoolExecutor(1, spawn, join, (num_threads, rank, f"{folder}/store"))
            pools.append(stack.enter_context(pool))

        def ask(function: Callable[..., float], *arguments: Any) -> float:
            futures = [pool.submit(function, *arguments) for pool in pools]
            return [future.result() for future in futures][0]

        yield ask


def join(num_threads: int, rank: int, store: str) -> None:
    torch.set_num_threads(num_threads)
    dist.init_process_group("gloo", f"file://{store}", timedelta(minutes=10), NUM_PROCESSES, rank)


if __name__ == "__main__":
    tyro.cli(sharded, config=(tyro.conf.FlagCreatePairsOff,))
