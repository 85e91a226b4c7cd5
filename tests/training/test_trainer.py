"""One update of a trainer: micro-batches, penalties, clipping, schedules, stages."""

import math
from dataclasses import replace

import pytest
import torch

from highrank.build import build_model
from highrank.config import BatchConfig, ModelConfig, StageConfig
from highrank.data.batches import Streams, draw_bptt
from highrank.training.trainer import Trainer

PLAIN = ModelConfig(
    embedding_size=6,
    hidden_sizes=(8, 7),
    embedding_dropout=0,
    input_dropout=0,
    hidden_dropout=0,
    output_dropout=0,
    weight_dropout=0,
)


def trainer(config, corpus, **changes):
    """In float64, without dropout."""
    config = replace(config, model=PLAIN, head=replace(config.head, dropout=0.0), **changes)
    torch.manual_seed(config.seed)
    model = build_model(config, len(corpus.vocabulary)).double()
    return Trainer(config, model, Streams(corpus.split("train"), config.batch.batch_size))


def gradients(made):
    made.optimizer.zero_grad()
    made._backward(made.data[:12], made.data[1:13])
    return [p.grad.clone() for p in made.model.parameters()], made.hidden_state


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_are_one_batch(size, config, corpus):
    whole, whole_state = gradients(trainer(config, corpus))
    batch = replace(config.batch, micro_batch_size=size)
    parts, parts_state = gradients(trainer(config, corpus, batch=batch))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    for (h, c), (h_parts, c_parts) in zip(whole_state, parts_state, strict=True):
        torch.testing.assert_close(h, h_parts)
        torch.testing.assert_close(c, c_parts)


def test_an_update_is_clipped_sgd(config, corpus):
    stage = StageConfig(lr=2.0, clip=0.05, weight_decay=0.01)
    batch = BatchConfig(batch_size=4, bptt=10, bptt_std=0)
    made = trainer(config, corpus, train=stage, batch=batch)
    before = [p.detach().clone() for p in made.model.parameters()]
    raw, _ = gradients(made)
    norm = torch.sqrt(sum(g.square().sum() for g in raw))
    made = trainer(config, corpus, train=stage, batch=replace(batch, bptt=12))
    made.train_window(0.0)
    scale = min(1.0, 0.05 / (norm + 1e-6))
    for p, old, g in zip(made.model.parameters(), before, raw, strict=True):
        torch.testing.assert_close(p.detach(), old - 2.0 * (g * scale + 0.01 * old))


def test_the_learning_rate_follows_the_drawn_window_and_the_cosine(config, corpus):
    stage = StageConfig(optimizer="adamw", lr=0.1, anneal=True, clip=1.0)
    made, batch = trainer(config, corpus, train=stage), config.batch
    for share in (0.0, 0.5, 1.0):
        generator = torch.Generator()
        generator.set_state(made.generator.get_state())
        length = draw_bptt(
            batch.bptt,
            std=batch.bptt_std,
            max_delta=batch.bptt_max_delta,
            half_probability=batch.bptt_half_probability,
            generator=generator,
        )
        made.train_window(share)
        want = 0.1 * 0.5 * (1 + math.cos(math.pi * share)) * length / config.batch.bptt
        assert made.optimizer.param_groups[0]["lr"] == pytest.approx(want)


def test_the_rate_rises_over_the_first_steps(config, corpus):
    stage = StageConfig(optimizer="adamw", lr=0.1, warmup_steps=4, clip=1.0)
    batch = replace(config.batch, bptt_std=0.0, bptt_half_probability=0.0)
    made, rates = trainer(config, corpus, train=stage, batch=batch), []
    for _ in range(6):
        made.train_window(0.0)
        rates.append(made.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_an_epoch_reads_the_text_once_and_stops_two_rows_before_its_end(config, corpus):
    made, rows = trainer(config, corpus), 0
    while not made.is_epoch_over:
        rows += made.train_window(0.0) // 4
    assert rows in (len(made.data) - 2, len(made.data) - 1)


def test_averaging_starts_when_validation_gets_worse_and_from_the_current_weights(config, corpus):
    made = trainer(config, corpus, train=StageConfig(switch_after=2, epochs=99))
    for epoch, loss in enumerate([5.0, 4.0, 3.0, 3.5, 4.5, 3.0], 1):
        made.note_validation(loss)
        if made.average is None:
            made.train_window(0.0)
        made.end_epoch(loss)
        assert (made.average is not None) == (epoch >= 5), epoch
    assert made.history == [5.0, 4.0, 3.0, 3.5, 4.5]
    torch.testing.assert_close(made.average.values, list(made.model.parameters()))


def test_finetuning_starts_from_the_best_weights_and_stops_by_its_own_rule(config, corpus):
    finetune = StageConfig(optimizer="asgd", stop_after=1, epochs=99)
    made = trainer(config, corpus, finetune=finetune)
    assert made.note_validation(3.0)
    best = [p.detach().clone() for p in made.model.parameters()]
    made.train_window(0.0)
    assert not made.note_validation(3.1)
    made.start_finetuning(3.0)
    torch.testing.assert_close(list(made.model.parameters()), best)
    for loss, over in [(2.9, False), (2.8, False), (2.95, True)]:
        made.end_epoch(loss)
        assert made.is_stage_over == over


def test_a_stage_that_averages_from_the_start_can_stop_by_its_rule(config, corpus):
    made = trainer(config, corpus, train=StageConfig(optimizer="asgd", stop_after=1, epochs=99))
    for loss, over in [(3.0, False), (2.9, False), (3.1, True)]:
        made.end_epoch(loss)
        assert made.is_stage_over == over
