"""`bench sharded`: the loss with the vocabulary in two processes against the loss in one.

Each process has half of the threads, so that two use what one process with all threads does.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.environment import environment
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import Shape, mixture_inputs
from highrank.studies.bench.loss import TOLERANCE, chosen_shapes

NUM_PROCESSES = 2
ONE, ALL_THREADS, SHARDED = "one process", "one process, all threads", "two processes"


@dataclass(frozen=True, kw_only=True)
class ShardedBenchResult(harness.BenchResult):
    shape: Shape
    num_threads: int
    """Of each process, but where one has all."""
    measurements: tuple[harness.Measurement, ...]
    sent: dict[str, float]
    """Bytes a token that a process hands to all-reduces, in the forward and backward pass."""


class Traffic(TorchDispatchMode):
    """Counts the bytes of what is sent between processes inside `with Traffic()`."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and func.overloadpacket.__name__ == "allreduce_":
            self.num_bytes += sum(tensor.nbytes for tensor in args[0])
        return func(*args, **kwargs or {})


def run_sharded_bench(
    name: str = "ptb",
    *,
    rounds: int = 5,
    quick: bool = False,
    on_progress: harness.OnProgress = harness.silent,
) -> ShardedBenchResult:
    """Measure time, and bytes sent, with the threads that torch has now.

    Args:
        name: key of `SHAPES`.
        quick: a tenth of the tokens.
    """
    harness.check_rounds(rounds)
    (shape,), start = chosen_shapes([name], quick), time.monotonic()
    names = (ONE, ALL_THREADS, SHARDED)
    variants = [harness.Variant(name=name, prepare=lambda: float) for name in names]
    all_threads = torch.get_num_threads()
    num_threads = max(1, all_threads // NUM_PROCESSES)
    begin = harness.counter(on_progress, (1 + rounds) * len(variants))
    with _threads_restored(), _team(shape, num_threads) as ask:
        works = {
            ONE: partial(_in_one_process, shape, num_threads),
            ALL_THREADS: partial(_in_one_process, shape, all_threads),
            SHARDED: partial(ask, "loss"),
        }
        values: dict[str, float] = {}
        for each, work in works.items():
            begin(f"warm-up of {each}")
            values[each] = work()
        check_values(values)
        times = harness.take_times(works, rounds, lambda name: begin(f"time of {name}"))
        sent = ask("traffic")
    mixture_inputs.cache_clear()
    return ShardedBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        environment=environment(),
        shape=shape,
        num_threads=num_threads,
        measurements=harness.summarise(variants, (ONE,), values=values, times=times, peaks={}),
        sent=sent,
    )


def check_values(values: dict[str, float]) -> None:
    """Raise unless all variants have the same loss."""
    want = values[ONE]
    for name, got in values.items():
        if not abs(got - want) <= TOLERANCE * abs(want):
            raise RuntimeError(f"loss of {name} must be {want:.6f} within {TOLERANCE}, got {got}")


def _in_one_process(shape: Shape, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    context, log_weight, weight, bias, target = mixture_inputs(shape)
    loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias)
    torch.autograd.grad(loss, (context, log_weight, weight, bias))
    return loss.item()


class _Member:
    """What one of the processes does."""

    def __init__(self, shape: Shape, rank: int) -> None:
        context, log_weight, weight, bias, target = mixture_inputs(shape)
        cut = [shape.vocab_size * index // NUM_PROCESSES for index in range(NUM_PROCESSES + 1)]
        self.shard = cut[rank], cut[rank + 1]
        own = slice(*self.shard)
        weight, bias = (x.detach()[own].clone().requires_grad_() for x in (weight, bias))
        self.leaves, self.target = (context, log_weight, weight, bias), target

    def loss(self) -> float:
        loss = self._forward()
        torch.autograd.grad(loss, self.leaves)
        return loss.item()

    def traffic(self) -> dict[str, float]:
        with Traffic() as forward:
            loss = self._forward()
        with Traffic() as backward:
            torch.autograd.grad(loss, self.leaves)
        sent = {"forward": forward.num_bytes, "backward": backward.num_bytes}
        return {name: num_bytes / len(self.target) for name, num_bytes in sent.items()}

    def _forward(self) -> torch.Tensor:
        context, log_weight, weight, bias = self.leaves
        return mixture_cross_entropy(
            context, log_weight, weight, self.target, bias=bias, shard=self.shard
        )


def serve(shape: Shape, num_threads: int, rank: int, store: str, pipe: Connection) -> None:
    """Answer requests for a `_Member`'s methods until there is an empty one."""
    torch.set_num_threads(num_threads)
    dist.init_process_group("gloo", f"file://{store}", timedelta(minutes=10), NUM_PROCESSES, rank)
    member = _Member(shape, rank)
    while name := pipe.recv():
        pipe.send(getattr(member, name)())
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def _team(shape: Shape, num_threads: int) -> Iterator[Callable[[str], Any]]:
    """Processes that each have a part of the vocabulary; a function that asks them all."""
    spawn, members = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(NUM_PROCESSES):
            pipe, other = spawn.Pipe()
            arguments = (shape, num_threads, rank, str(Path(folder, "store")), other)
            member = spawn.Process(target=serve, args=arguments, daemon=True)
            member.start()
            other.close()
            members.append((member, pipe))

        def ask(name: str) -> Any:
            for _, pipe in members:
                pipe.send(name)
            return [pipe.recv() for _, pipe in members][0]

        try:
            yield ask
            for _, pipe in members:
                pipe.send("")
            for member, _ in members:
                member.join(10)
        finally:
            for member, _ in members:
                member.kill()


@contextmanager
def _threads_restored() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
