"""One update of a trainer: micro-batches, clipping, the learning rate, what it saves."""

import math
from dataclasses import replace

import pytest
import torch

from highrank.build import build_batches, build_model
from highrank.config import BatchConfig, ModelConfig, StageConfig, with_options
from highrank.training.schedule import learning_rate
from highrank.training.trainer import Trainer
from highrank.training.world import World

PLAIN = ModelConfig(embedding_size=6, options={"hidden_sizes": (8, 7)})
PENALISED = with_options(PLAIN, activation_penalty=0.1, temporal_penalty=0.1)


def make(config, corpus, stage=None, micro_batch_size=None, **changes):
    """A trainer in float64, without dropout, and its batches."""
    head = replace(config.head, dropout=0.0)
    config = replace(config, **({"model": PENALISED, "head": head} | changes))
    torch.manual_seed(config.seed)
    model = build_model(config, len(corpus.vocabulary)).double()
    batches = build_batches(config, corpus.split("train"))
    return Trainer(model, stage or config.train, micro_batch_size=micro_batch_size), batches


def gradients(made, batch):
    made.optimizer.zero_grad()
    made.model.train()
    made._backward(batch)
    return [p.grad.clone() for p in made.model.parameters()], made.hidden_state


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_are_one_batch(size, config, corpus):
    made, batches = make(config, corpus)
    batch = next(batches)
    whole, whole_state = gradients(made, batch)
    parts, parts_state = gradients(make(config, corpus, micro_batch_size=size)[0], batch)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    for (h, c), (h_parts, c_parts) in zip(whole_state, parts_state, strict=True):
        torch.testing.assert_close(h, h_parts)
        torch.testing.assert_close(c, c_parts)


def test_an_update_is_clipped_sgd(config, corpus):
    stage = StageConfig(lr=2.0, clip=0.05, weight_decay=0.01)
    batch = BatchConfig(batch_size=4, options={"bptt": 12, "bptt_std": 0.0})
    made, batches = make(config, corpus, stage, batch=batch)
    before = [p.detach().clone() for p in made.model.parameters()]
    first = next(batches)
    raw, _ = gradients(made, first)
    norm = torch.sqrt(sum(g.square().sum() for g in raw))
    made.step(first)
    scale = min(1.0, 0.05 / (norm + 1e-6))
    for p, old, g in zip(made.model.parameters(), before, raw, strict=True):
        torch.testing.assert_close(p.detach(), old - 2.0 * (g * scale + 0.01 * old))


def test_the_learning_rate_follows_the_drawn_window_and_the_cosine(config, corpus):
    stage = StageConfig(optimizer="adamw", lr=0.1, anneal=True, clip=1.0)
    made, batches = make(config, corpus, stage)
    for progress in (0.0, 0.5, 1.0):
        batch = next(batches)
        assert batch.lr_ratio == (len(batch.target), 12)
        made.step(batch, progress)
        want = 0.1 * 0.5 * (1 + math.cos(math.pi * progress)) * len(batch.target) / 12
        assert made.optimizer.param_groups[0]["lr"] == pytest.approx(want)


def test_the_rate_rises_over_the_first_steps():
    stage = StageConfig(lr=0.1, warmup_steps=4)
    rates = [learning_rate(stage, step, progress=0.0) for step in range(6)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_a_group_may_have_a_rate_of_its_own(config, corpus):
    made, batches = make(config, corpus, StageConfig(lr=0.1))
    groups = made.model.parameter_groups()
    parameters = groups[0]["params"]
    made.model.parameter_groups = lambda: [
        {"params": parameters[:1], "lr_scale": 2.0, "weight_decay": 0.0},
        {"params": parameters[1:]},
    ]
    made.start_stage(made.stage)
    batch = next(batches)._replace(lr_ratio=(1, 1))
    made.step(batch)
    assert [group["lr"] for group in made.optimizer.param_groups] == [0.2, 0.1]
    assert [group["weight_decay"] for group in made.optimizer.param_groups] == [0.0, 1.2e-6]


def test_an_average_starts_from_the_current_weights_and_is_borrowed(config, corpus):
    made, batches = make(config, corpus)
    made.step(next(batches))
    made.start_averaging()
    torch.testing.assert_close(made.average.values, list(made.model.parameters()))
    made.step(next(batches))
    made.step(next(batches))
    now = [p.detach().clone() for p in made.model.parameters()]
    with made.averaged():
        torch.testing.assert_close(made.average.values, list(made.model.parameters()))
        assert not torch.equal(now[0], next(made.model.parameters()))
    torch.testing.assert_close(now, list(made.model.parameters()))


def test_what_is_frozen_is_neither_averaged_nor_saved(config, corpus):
    def frozen():
        made, batches = make(config, corpus)
        made.model.backbone.requires_grad_(False)
        made.start_averaging()
        return made, batches

    made, batches = frozen()
    trained = [p for p in made.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in made.model.backbone.parameters()]
    made.step(next(batches))
    torch.testing.assert_close(made.average.values, trained)
    assert all(name.startswith("head") for name in made.state_dict()["model"])
    again, _ = frozen()
    again.load_state_dict(made.state_dict())
    for p, *others in zip(
        before, made.model.backbone.parameters(), again.model.backbone.parameters(), strict=True
    ):
        assert all(torch.equal(p, other) for other in others)


def test_penalties_are_learned_from_and_not_reported(config, corpus):
    made, batches = make(config, corpus)
    plain, _ = make(config, corpus, model=PLAIN)
    batch = next(batches)
    one, other = gradients(made, batch)[0], gradients(plain, batch)[0]
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert made.step(batch) == plain.step(batch)


def test_a_network_without_a_state_continues_in_several_processes(config, corpus):
    made, _ = make(config, corpus)
    made.world, made.model.initial_state = World(1, 2), lambda batch_size: []
    assert made._own_columns([]) == []
