"""Any task and number of processes through one training path.

An encoder–decoder that copies padded sequences. Several processes: `test_processes.py`.
T time, B sequences, D size, V vocabulary.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from highrank.config import StageConfig
from highrank.data.batches import IGNORED, Batch
from highrank.heads import MixtureOfSoftmaxes
from highrank.models.backbone import decay_matrices_only
from highrank.training.session import open_session
from highrank.training.trainer import Trainer

V, D, T, B = 11, 16, 10, 6
ADAMW = StageConfig(optimizer="adamw", lr=5e-3, weight_decay=0.01, clip=1.0, anneal=True)


class Pairs:
    """Sequences of different lengths, to be copied; what is padded counts for nothing.

    They are drawn anew from a seed and a position, `length` of them in an epoch.
    """

    def __init__(self, length=20):
        self.length, self.position = length, 0

    progress = property(lambda self: self.position / self.length)
    is_epoch_over = property(lambda self: self.position >= self.length)

    def start_epoch(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

    def __next__(self):
        self.position += 1
        return self.draw(torch.Generator().manual_seed(self.position))

    def draw(self, generator):
        source = torch.randint(1, V, (T, B), generator=generator)
        length = torch.randint(3, T + 1, (B,), generator=generator)
        is_padding = torch.arange(T)[:, None] >= length
        target = source.masked_fill(is_padding, IGNORED)
        before = F.pad(source[:-1], (0, 0, 1, 0))  # (T, B), a 0 first
        inputs = {"source": source.masked_fill(is_padding, 0), "before": before}
        return Batch(inputs, target, num_targets=int(length.sum()))


@dataclass
class Output:
    loss: Any
    penalty: float = 0.0
    state: Any = ()


class Copier(nn.Module):
    """A GRU decoder that starts where its encoder ended, and sees the source's token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.encoder, self.decoder = nn.GRU(D, D), nn.GRU(2 * D, D)
        self.head = MixtureOfSoftmaxes(D, V, num_components=2, embedding_size=D)

    def initial_state(self, batch_size):
        return ()

    def parameter_groups(self):
        return decay_matrices_only(self)

    def forward(self, inputs, target, state):
        source = self.embedding(inputs["source"])
        _, start = self.encoder(source)
        x = torch.cat((source, self.embedding(inputs["before"])), -1)
        return Output(self.head(self.decoder(x, start)[0], target).loss)


def make(**options):
    torch.manual_seed(4)
    return Trainer(Copier(), ADAMW, **options), Pairs()


def run(trainer, batches, num_steps):
    return [trainer.step(next(batches), batches.progress) for _ in range(num_steps)]


def test_another_network_learns():
    trainer, batches = make()
    batches.length = 150
    losses = run(trainer, batches, 150)
    assert losses[0] > 0.9 * math.log(V) and losses[-1] < 0.5 * losses[0]


def test_it_resumes_to_the_bit():
    trainer, batches = make()
    run(trainer, batches, 5)
    saved = trainer.state_dict(), batches.state_dict()
    saved = torch.utils._pytree.tree_map(lambda x: x.clone() if hasattr(x, "clone") else x, saved)
    want = run(trainer, batches, 5)
    again, batches = make()
    again.load_state_dict(saved[0])
    batches.load_state_dict(saved[1])
    assert run(again, batches, 5) == want
    for one, other in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [1, 4])
def test_micro_batches_equal_one_batch(size):
    """In float64 and without dropout; each target counts alike, however much is padded."""
    found = []
    for micro_batch_size in (None, size):
        trainer, batches = make(micro_batch_size=micro_batch_size)
        trainer.model.double()
        trainer.model.train = lambda mode=True, model=trainer.model: nn.Module.train(model, False)
        found.append((run(trainer, batches, 3), list(trainer.model.parameters())))
    (losses, one), (parts, other) = found
    assert losses == pytest.approx(parts, rel=1e-12)
    for p, q in zip(one, other, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-10)


def test_a_mistake_of_the_first_process_is_an_error_in_all(config, corpus, tmp_path, processes):
    (tmp_path / "thesis.tex").write_text("all my work")
    for message in processes(refusal, config, corpus, str(tmp_path)):
        assert "the run's folder must be empty" in message
    odd = replace(config, batch=replace(config.batch, batch_size=7))
    for message in processes(refusal, odd, corpus, str(tmp_path / "new")):
        assert "must be a multiple of the" in message


def refusal(config, corpus, folder):
    with pytest.raises(ValueError) as caught:
        open_session(config, corpus, Path(folder))
    return str(caught.value)
