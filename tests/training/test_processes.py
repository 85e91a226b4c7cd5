"""Several processes train as one does: the same steps, to round-off, whatever is trained.

In float64 and without dropout; with dropout, masks differ between processes.
"""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.training.outcome import Reason
from highrank.training.session import open_session

TOLERANCE = 1e-9
SGD = StageConfig(lr=1.0, epochs=4, switch_after=0, clip=0.5)
ASGD = StageConfig(optimizer="asgd", lr=1.0, epochs=2, clip=0.5)
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
CONFIGS = {
    "sgd, asgd, finetuning": replace(BASE, train=SGD, finetune=ASGD),
    "adamw": BASE,
    "micro-batches": replace(BASE, batch=replace(BASE.batch, micro_batch_size=2)),
    "transformer": replace(BASE, model=network("transformer", TRANSFORMER)),
    "gated-cnn": replace(BASE, model=network("gated-cnn", GATED_CNN)),
    "pointer": replace(BASE, head=POINTER),
    "ngram": replace(BASE, head=replace(BASE.head, kind="mos+ngram")),
    "blocks": replace(BASE, batch=BatchConfig(kind="blocks", batch_size=6, options={"length": 12})),
}
two = pytest.mark.parametrize("processes", [2], indirect=True)


def train(config, corpus, folder):
    """A run in float64 to its end; returns the process' best weights and last ones."""
    torch.set_default_dtype(torch.float64)
    try:
        with closing(open_session(config, corpus, Path(folder))) as session:
            assert session.go().reason is Reason.FINISHED
            found = {f"best.{name}": tensor for name, tensor in session.best_state.items()}
            return found | dict(session.model.state_dict())
    finally:
        torch.set_default_dtype(torch.float32)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("step", "tokens", "train_loss", "valid_loss", "specialisation", "is_averaging")
    return [[line.get(key, 0) for key in keys] for line in lines]


@two
@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_equal_one(name, corpus, tmp_path, processes):
    config = CONFIGS[name]
    found = processes(train, config, corpus, str(tmp_path / "many"))
    alone = train(config, corpus, tmp_path / "one")
    want = losses(tmp_path / "one")
    assert len(want) >= 30
    for line, same in zip(losses(tmp_path / "many"), want, strict=True):
        assert line == pytest.approx(same, rel=TOLERANCE)
    for weights in found:
        for key, tensor in alone.items():
            torch.testing.assert_close(weights[key], tensor, rtol=0, atol=TOLERANCE)
