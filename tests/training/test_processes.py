"""Several processes train as one does: the same steps, to round-off, whatever is trained.

In float64 and without dropout; with dropout, masks differ between processes.
"""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.vocabulary import Vocabulary
from highrank.ops.sharding import local_rows
from highrank.training import world
from highrank.training.checkpoint import load_checkpoint
from highrank.training.distributed_checkpoint import read_shards
from highrank.training.outcome import Reason
from highrank.training.session import open_session
from highrank.training.world import World

TOLERANCE = 1e-9
SGD = StageConfig(lr=1.0, epochs=2, switch_epoch=1, clip=0.5)
ASGD = StageConfig(optimizer="asgd", lr=1.0, epochs=1, clip=0.5)
ADAMW = StageConfig(optimizer="adamw", lr=0.01, steps=30, clip=0.5, anneal=True, warmup_steps=5)
PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}
BASE = RunConfig(
    corpus="made in the tests",
    seed=3,
    model=ModelConfig(embedding_size=6, options={"hidden_sizes": (8, 7), **PENALTIES}),
    head=HeadConfig(num_components=3, dropout=0.0),
    batch=BatchConfig(batch_size=6, options={"bptt": 20, "bptt_max_delta": 8}),
    train=ADAMW,
    valid_batch_size=3,
)


def network(kind, options):
    return ModelConfig(kind=kind, embedding_size=6, options=options)


TRANSFORMER = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "memory": 9, **PENALTIES}
GATED_CNN = {"hidden_size": 8, "num_blocks": 2, **PENALTIES}
POINTER = HeadConfig(kind="adaptive-softmax+pointer", dropout=0.0, options={"cutoffs": (8,)})
# A batch has one to eight sentences: processes with one less, or none, have columns to ignore.
SENTENCES = BatchConfig(kind="sentences", batch_size=5, micro_batch_size=2, options={"length": 16})
# Penalties are means over what each process has of a batch, padding included.
PLAIN = ModelConfig(embedding_size=6, options={"hidden_sizes": (8, 7)})
CONFIGS = {
    "sgd, asgd, finetuning": replace(BASE, train=SGD, finetune=ASGD),
    "adamw": BASE,
    "micro-batches": replace(BASE, batch=replace(BASE.batch, micro_batch_size=2)),
    "transformer": replace(BASE, model=network("transformer", TRANSFORMER)),
    "gated-cnn": replace(BASE, model=network("gated-cnn", GATED_CNN)),
    "pointer": replace(BASE, head=POINTER),
    "ngram": replace(BASE, head=replace(BASE.head, kind="mos+ngram")),
    "blocks": replace(BASE, batch=BatchConfig(kind="blocks", batch_size=6, options={"length": 12})),
    "sentences": replace(BASE, batch=SENTENCES, model=PLAIN),
    "sentences, pointer": replace(BASE, batch=SENTENCES, model=PLAIN, head=POINTER),
}
EMBEDDING = "backbone.embedding.weight"
# Each notices what the others do not; the rest is slow.
QUICK = {"sgd, asgd, finetuning", "vocabulary, sentences", "full, sentences, pointer"}
three = pytest.mark.parametrize("processes", [3], indirect=True)


def names(configs):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in configs]


def open_in(config, corpus, folder, shard):
    """A session of all processes; sentences are validated one by one, too."""
    if config.batch.kind == "sentences":
        corpus = SimpleNamespace(**vars(corpus) | {"sentence_end": corpus.vocabulary.eos})
    joined = replace(World.current(), shard=shard)
    return closing(open_session(config, corpus, Path(folder), world=joined))


def train(config, corpus, folder, shard="none", num_steps=None):
    """A run in float64 to its end or so many steps; returns the shapes of the process' tensors."""
    torch.set_default_dtype(torch.float64)
    try:
        with open_in(config, corpus, folder, shard) as session:
            outcome = session.go(lambda: session.trainer.num_steps == num_steps)
            assert outcome.reason is (Reason.FINISHED if num_steps is None else Reason.PAUSED)
            parameters = session.model.named_parameters()
            return {name: tuple(local_rows(p).shape) for name, p in parameters}
    finally:
        torch.set_default_dtype(torch.float32)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("step", "tokens", "train_loss", "valid_loss", "is_averaging")
    return [[line.get(key, 0) for key in keys] for line in lines]


def checkpoint(folder):
    """Everything in a run's checkpoint, shards put together."""
    state = load_checkpoint(folder / "trainer.pt")
    return read_shards(folder, state, World())


def check_same(folder, other):
    """Both runs have the same losses, weights and optimiser, to round-off."""
    want = losses(other)
    assert len(want) >= 30
    for line, same in zip(losses(folder), want, strict=True):
        assert line == pytest.approx(same, rel=TOLERANCE)
    one, two = checkpoint(folder), checkpoint(other)
    for name in ("model", "optimizer", "average", "hidden_state"):
        torch.testing.assert_close(
            one["trainer"][name], two["trainer"][name], rtol=0, atol=TOLERANCE
        )
    torch.testing.assert_close(one["best_state"], two["best_state"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", names(CONFIGS))
def test_several_processes_equal_one(name, corpus, tmp_path, processes):
    processes(train, CONFIGS[name], corpus, str(tmp_path / "many"))
    train(CONFIGS[name], corpus, tmp_path / "one")
    check_same(tmp_path / "many", tmp_path / "one")
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "many").iterdir()} == names


DEEP = replace(CONFIGS["micro-batches"], model=CONFIGS["transformer"].model)
UNPENALISED = network("transformer", TRANSFORMER | dict.fromkeys(PENALTIES, 0.0))
SHARDED = {
    "vocabulary": ("vocabulary", CONFIGS["sgd, asgd, finetuning"]),
    "vocabulary, micro-batches": ("vocabulary", CONFIGS["micro-batches"]),
    "vocabulary, untied": ("vocabulary", replace(BASE, model=replace(BASE.model, tied=False))),
    "vocabulary, transformer": ("vocabulary", DEEP),
    "full": ("full", CONFIGS["sgd, asgd, finetuning"]),
    "full, transformer": ("full", DEEP),
    "full, gated-cnn": ("full", CONFIGS["gated-cnn"]),
    "full, pointer": ("full", CONFIGS["pointer"]),
    "full, ngram": ("full", CONFIGS["ngram"]),
    "vocabulary, sentences": ("vocabulary", replace(CONFIGS["sentences"], model=UNPENALISED)),
    "full, sentences": ("full", CONFIGS["sentences"]),
    "full, sentences, pointer": ("full", CONFIGS["sentences, pointer"]),
}


@three
@pytest.mark.parametrize("name", names(SHARDED))
def test_a_sharded_run_is_that_of_one_process(name, corpus, tmp_path, processes):
    """Of a tied embedding of 20 tokens, three processes have 7, 7 and 6 rows."""
    shard, config = SHARDED[name]
    shapes = processes(train, config, corpus, str(tmp_path / "many"), shard)
    train(config, corpus, tmp_path / "one")
    rows = [found["head.weight" if "untied" in name else EMBEDDING] for found in shapes]
    if config.head.kind == "mos":
        assert rows == [(7, 6), (7, 6), (6, 6)]
    check_same(tmp_path / "many", tmp_path / "one")


@pytest.mark.slow
@three
def test_a_process_may_have_no_rows_of_a_small_vocabulary(corpus, tmp_path, processes):
    few = {name: corpus.split(name) % 4 for name in ("train", "valid", "test")}
    words, counts = Vocabulary(("<eos>", "a", "b", "c")), np.bincount(few["train"]).tolist()
    small = SimpleNamespace(**vars(corpus) | {"vocabulary": words, "token_counts": counts})
    small.split = few.__getitem__
    shapes = processes(train, BASE, small, str(tmp_path / "many"), "vocabulary")
    train(BASE, small, tmp_path / "one")
    assert [found[EMBEDDING] for found in shapes] == [(2, 6), (2, 6), (0, 6)]
    check_same(tmp_path / "many", tmp_path / "one")


SHARDS = ["none", *(pytest.param(way, marks=pytest.mark.slow) for way in ("vocabulary", "full"))]


@pytest.mark.parametrize("shard", SHARDS)
def test_another_number_of_processes_continues_a_run(shard, corpus, tmp_path, processes):
    """Many, one, many again: with the same text in the same order the losses are the same."""
    folder, config = tmp_path / "many", CONFIGS["sgd, asgd, finetuning"]
    processes(train, config, corpus, str(folder), shard, 13)
    train(config, corpus, folder, num_steps=31)
    processes(train, config, corpus, str(folder), shard)
    train(config, corpus, tmp_path / "one")
    check_same(folder, tmp_path / "one")


def refusal(shard, corpus, folder):
    """Why a process does not open a run, and whether another one says it."""
    with pytest.raises(ValueError) as error:
        open_in(BASE, corpus, folder, shard)
    return str(error.value), getattr(error.value, "is_told", False)


@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_damaged_checkpoint_is_refused_by_all_and_told_by_one(shard, corpus, tmp_path, processes):
    processes(train, BASE, corpus, str(tmp_path), shard, 2)
    file = min(tmp_path.glob("shards-*/*"), default=tmp_path / "trainer.pt")
    file.write_bytes(file.read_bytes()[:-9])
    told, *others = processes(refusal, shard, corpus, str(tmp_path))
    assert others == [(told[0], True)] * (processes.size - 1) and not told[1]
    assert "must have the shards" in told[0] if shard == "full" else "trainer.pt" in told[0]


def summed():
    """Gradients after a sum, of parameters that all, one or no process has used."""
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    parameters[1].requires_grad_(False)
    rank = World.current().rank
    (parameters[0] * (rank + 1)).sum().backward()
    if rank == 1:
        (parameters[2] * 5).sum().backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "BUCKET_BYTES", 8)
        World.current().sum_gradients(parameters)
    return [None if p.grad is None else p.grad.tolist() for p in parameters]


def test_gradients_are_summed_in_buckets_and_what_nobody_uses_has_none(processes):
    total = 1.0 + 2.0 if processes.size == 2 else 1.0 + 2.0 + 3.0
    assert processes(summed) == [[[total] * 3, None, [5.0] * 3, None]] * processes.size


class Reductions(TorchDispatchMode):
    """Counts the collectives inside `with Reductions()` that add numbers of all processes."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        self.count += name.startswith("c10d") and "reduce" in name
        return func(*args, **(kwargs or {}))


def reductions(corpus, folder, shard):
    """How many a step needs with a batch at once, and in three micro-batches."""
    found = []
    for size in (None, 1):
        config = replace(BASE, batch=replace(BASE.batch, batch_size=9, micro_batch_size=size))
        with open_in(config, corpus, f"{folder}/{size}", shard) as session:
            trainer, batches = session.trainer, session.batches
            # The first one prepares.
            trainer.step(next(batches))
            with Reductions() as seen:
                trainer.step(next(batches))
            found.append(seen.count)
    return found


@three
@pytest.mark.parametrize("shard", ["none", "full"])
def test_micro_batches_are_added_up_before_gradients_are_exchanged(
    shard, corpus, tmp_path, processes
):
    for at_once, in_parts in processes(reductions, corpus, str(tmp_path), shard):
        assert at_once == in_parts > 1


def masks(config, corpus, folder):
    """Masks that a process draws at the start, and those of a run that is opened again."""
    found = []
    for _ in range(2):
        with closing(open_session(config, corpus, Path(folder))) as session:
            session.save()
            found.append(F.dropout(torch.ones(100)).tolist())
    return found


def test_dropout_masks_differ_between_processes_and_come_back(config, corpus, tmp_path, processes):
    config = replace(config, batch=replace(config.batch, batch_size=6))
    found = processes(masks, config, corpus, str(tmp_path / "run"))
    assert len({tuple(first) for first, _ in found}) == processes.size
    assert all(first == again for first, again in found)


@pytest.mark.slow
def test_dropout_leaves_the_curve_as_it_is(config, corpus, tmp_path, processes):
    config = replace(config, batch=replace(config.batch, batch_size=6))
    processes(train, config, corpus, str(tmp_path / "many"))
    train(config, corpus, tmp_path / "one")
    ends = [losses(tmp_path / name)[-1] for name in ("many", "one")]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)
