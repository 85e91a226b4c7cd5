"""Training in 1, 2 and 4 processes: tokens a second, bytes sent, memory.

    python benchmarks/scale.py --threads 2

One process has all threads; several share them. The system counts the bytes that a process sends in
a step; `benchmarks/projection.py` computes them.
"""

import os
import socket
import struct
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import tyro
from projection import Step
from rich.table import Table

from highrank import presets
from highrank.build import build_batches, build_model
from highrank.cli.console import Threads, progress, show
from highrank.config import RunConfig
from highrank.environment import environment, set_threads
from highrank.training.trainer import Trainer
from highrank.training.world import World

# Of the kernel's tcp_info: where its count of sent bytes is.
BYTES_SENT = 200
STATUS = Path("/proc/self/status")
Sharding = Literal["none", "vocabulary", "full"]
Row = dict[str, Any]


def scale(
    *,
    preset: str = "ptb-small-mos",
    shard: tuple[Sharding, ...] = ("none", "vocabulary", "full"),
    processes: tuple[int, ...] = (1, 2, 4),
    vocab_size: int = 10_000,
    steps: int = 30,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Measure training steps in several processes.

    Args:
        preset: Whose model is trained, on random tokens, without dropout.
        shard: What each process has a part of.
        processes: How many there are.
        vocab_size: V.
        steps: Of each measurement, after three that do not count.
        json: Print the numbers as JSON instead of a table.
        threads: Of all processes together.
    """
    set_threads(threads)
    cases = [(size, way) for size in processes for way in shard if size > 1 or way == "none"]
    found, config = [], without_dropout(preset)
    with progress("Measuring training in several processes") as on_progress:
        for index, (size, way) in enumerate(cases):
            on_progress(index / len(cases), f"{size} processes, shard {way}")
            found.append(measure(config, size, way, vocab_size, steps))
    show({"rows": found, "environment": environment()}, table, json=json)


def without_dropout(preset: str) -> RunConfig:
    config = presets.get(preset)
    options = {k: v for k, v in config.model.options.items() if not k.endswith("dropout")}
    batch = replace(config.batch, batch_size=24, options={"bptt": 35, "bptt_std": 0.0})
    head = replace(config.head, dropout=0.0)
    return replace(config, model=replace(config.model, options=options), head=head, batch=batch)


def measure(config: RunConfig, size: int, way: Sharding, vocab_size: int, steps: int) -> Row:
    """What a step takes, by processes of their own; memory is that of the largest."""
    threads, spawn = max(1, torch.get_num_threads() // size), get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in range(size)]
        arguments = (size, f"{folder}/store", threads, config, way, vocab_size, steps)
        futures = [pool.submit(train, rank, *arguments) for rank, pool in enumerate(pools)]
        every = [future.result() for future in futures]
    step = step_of(config, vocab_size, every[0]["parameters"], size)
    ways = {"none": step.replicated, "vocabulary": step.vocabulary, "full": step.full_by_gloo}
    about = {"processes": size, "shard": way, "computed_bytes": ways[way]()}
    return about | every[0] | {"megabytes": max(found["megabytes"] for found in every)}


def step_of(config: RunConfig, vocab_size: int, num_parameters: int, size: int) -> Step:
    """The step that a configuration makes, with as many parameters as its model has."""
    model, batch, K = config.model, config.batch, config.head.num_components
    sizes = {"embedding_size": model.embedding_size, "num_components": K, "processes": size}
    sizes |= {"vocab_size": vocab_size, "hidden_size": model.options["hidden_sizes"][-1]}
    step = Step(**sizes, body=0, tokens=batch.batch_size * batch.options["bptt"] // size)
    return replace(step, body=num_parameters - step.table - step.rest)


def train(
    rank: int, size: int, store: str, threads: int, config: RunConfig, way: Sharding, *numbers: int
) -> Row:
    """What one process finds; the bytes are those that it sends in a step."""
    vocab_size, steps = numbers
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", f"file://{store}", timedelta(minutes=10), size, rank)
    world = replace(World.current(), shard=way)
    torch.manual_seed(0)
    tokens = np.random.default_rng(0).integers(vocab_size, size=200_000)
    model = build_model(config, vocab_size)
    world.share_model(model, 0)
    trainer = Trainer(model, config.train, world=world)
    batches = build_batches(config, tokens, columns=world.columns(config.batch))
    for _ in range(3):
        trainer.step(next(batches))
    sent, times = _bytes_sent(), [time.perf_counter()]
    for _ in range(steps):
        loss = trainer.step(next(batches))
        times.append(time.perf_counter())
    return {
        "tokens_per_second": trainer.num_targets / float(np.median(np.diff(times))),
        "counted_bytes": (_bytes_sent() - sent) / steps,
        "megabytes": int(STATUS.read_text().split("VmHWM:")[1].split()[0]) / 1024,
        "loss": loss,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _bytes_sent() -> int:
    """Bytes that this process has sent over all of its connections."""
    total = 0
    paths = Path("/proc/self/fd").iterdir()
    for path in (path for path in paths if "socket:" in os.path.realpath(path)):
        # Sockets of other kinds have no such count.
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("Q", found, BYTES_SENT)[0]
    return total


def table(result: dict[str, Any]) -> Table:
    rows: list[Row] = result["rows"]
    columns = ("tokens/s", "of one", "MB sent, computed", "counted", "memory, MB")
    shown = Table("processes", "shard", *columns, title="Training steps on this machine")
    for row in rows:
        speed, one = row["tokens_per_second"], rows[0]["tokens_per_second"]
        sent = [f"{row[name] / 1e6:,.2f}" for name in ("computed_bytes", "counted_bytes")]
        numbers = (f"{speed:,.0f}", f"{speed / one:.2f}", *sent, f"{row['megabytes']:,.0f}")
        shown.add_row(str(row["processes"]), row["shard"], *numbers)
    return shown


if __name__ == "__main__":
    tyro.cli(scale, config=(tyro.conf.FlagCreatePairsOff,))
