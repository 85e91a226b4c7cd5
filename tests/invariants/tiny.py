"""Tiny runs of several kinds, and everything that they leave, for trials of their files."""

import contextlib
import itertools
import json
import os
import random
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.prepare import TextOptions, prepare_text
from highrank.models.tensors import content_sha256, read_tensors
from highrank.training import budget as budget_module
from highrank.training import session
from highrank.training.checkpoint import load_checkpoint
from highrank.training.distributed_checkpoint import read_shards
from highrank.training.result import finish
from highrank.training.session import open_session
from highrank.training.world import World

WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]
BASE = RunConfig(
    corpus="tale",
    seed=3,
    model=ModelConfig(
        embedding_size=6,
        options={
            "hidden_sizes": (8, 7),
            "embedding_dropout": 0.1,
            "input_dropout": 0.4,
            "hidden_dropout": 0.2,
            "output_dropout": 0.4,
            "weight_dropout": 0.5,
            "activation_penalty": 2.0,
            "temporal_penalty": 1.0,
        },
    ),
    head=HeadConfig(kind="mos", num_components=3, dropout=0.1),
    batch=BatchConfig(batch_size=4, options={"bptt": 20, "bptt_max_delta": 8}),
    train=StageConfig(lr=1.0, epochs=2, switch_epoch=1, clip=1.0),
    valid_batch_size=2,
)
ADAMW = StageConfig(optimizer="adamw", lr=0.01, epochs=2, clip=1.0, anneal=True)
ASGD = StageConfig(optimizer="asgd", lr=1.0, epochs=2, clip=1.0)
CONFIGS = {
    "asgd": BASE,
    "finetuning": replace(BASE, finetune=ASGD),
    "adamw": replace(BASE, train=ADAMW),
    "micro-batches": replace(BASE, batch=replace(BASE.batch, micro_batch_size=3)),
    "budget": replace(BASE, train=replace(BASE.train, epochs=10**6)),
}
# In seconds of a clock that moves by a tick whenever it is asked; sums of a power of two are exact.
BUDGET, TICK = 1.0, 2.0**-7


def make_corpus(folder):
    """A prepared corpus called `tale`, in folder/cache."""
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) for _ in range(120))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tale.txt").write_text("\n".join(lines))
    options = TextOptions(min_count=1)
    return prepare_text(folder / "tale.txt", options=options, cache=folder / "cache").corpus


class StepClock:
    """A clock on which a run with a budget is repeatable."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += TICK
        return self.now

    def perf_counter(self):
        """Saving and logging take no time."""
        return 0.0

    def process_time(self):
        return self.now

    thread_time = process_time


def train(kind, corpus, folder, world=None):
    """Train or resume the run of this kind until its end, the test included."""
    if kind == "budget":
        session.time = budget_module.time = StepClock()
    budget = BUDGET if kind == "budget" else None
    run = open_session(CONFIGS[kind], corpus, folder, budget=budget, world=world)
    outcome = run.go()
    if outcome.reason != "interrupted":
        finish(run, corpus.split("test"), outcome)


def everything(folder):
    """All that a run leaves, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    checkpoint = read_shards(folder, load_checkpoint(folder / "trainer.pt"), World())
    # With a budget, progress is of the time, and a new session finds out anew how fast it goes.
    timed = ["seconds", "cpu_seconds", "data_seconds"]
    timed += [] if checkpoint["clock"]["budget"] is None else ["progress"]
    for line, name in itertools.product(lines, timed):
        line.pop(name, None)
    return {
        # The numbers of shards' folders count how often they were saved.
        "files": sorted(path.name.partition("shards-")[0] for path in folder.iterdir()),
        "metrics": lines,
        "model": content_sha256(read_tensors(folder / "model.safetensors")),
        **{name: content_sha256(checkpoint[name]) for name in ("trainer", "batches", "schedule")},
        "counts": checkpoint["num_tokens"],
    }


def in_child(work):
    """Start it in a forked process; returns the process' number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        return child
    with contextlib.suppress(BaseException):
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException:
            traceback.print_exc()
    os._exit(1)


def exit_code(child):
    """Wait for the process; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm_up(corpus, folder):
    """Let this process load what its children would otherwise each load."""
    train("adamw", corpus, folder)


def write_json(path, content):
    """At once or not at all."""
    Path(f"{path}.new").write_text(json.dumps(content, indent=1))
    os.replace(f"{path}.new", path)
