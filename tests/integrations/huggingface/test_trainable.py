"""An upgraded model in a `Trainer`: its loss, its parameter groups, what its head is given."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")
from transformers import GPT2Config, GPT2LMHeadModel

from highrank.data.batches import Blocks
from highrank.integrations.huggingface.trainable import TrainableModel
from highrank.integrations.huggingface.upgrade import train_head, upgrade

SIZES = {"vocab_size": 30, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}


@pytest.fixture
def model():
    plain = GPT2LMHeadModel(GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0)).eval()
    return TrainableModel(upgrade(plain, num_components=3), added_lr_scale=2.0)


@pytest.fixture(params=[(), (7, 8)], ids=["alone", "prefix"])
def batch(request):
    return Blocks(np.arange(30), 2, length=6, prefix=request.param).batch([2, 0, 1])


def test_the_loss_is_the_mean_over_the_targets(model, batch):
    logits = model.model(batch.inputs.T).logits
    log_prob = logits.log_softmax(-1).transpose(0, 1)  # (L, B, V)
    want = F.nll_loss(log_prob.flatten(0, 1), batch.target.flatten())
    torch.testing.assert_close(model(batch.inputs, batch.target).loss, want)


def test_the_head_is_given_what_it_predicts_from(model, batch):
    want = model.model(batch.inputs.T).logits.log_softmax(-1)  # (B, L, V)
    torch.testing.assert_close(model.head.log_prob(model.head_inputs(batch.inputs)), want)


def test_added_parameters_have_their_rate_and_matrices_are_decayed(model):
    groups = model.parameter_groups()
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    for group in groups:
        assert {p.dim() > 1 for p in group["params"]} == {"weight_decay" not in group}
    added = {id(p) for group in groups if group["lr_scale"] == 2 for p in group["params"]}
    assert added == {id(p) for p in model.head.parameters()} - {id(model.head.weight)}
    train_head(model.model)
    assert {id(p) for group in model.parameter_groups() for p in group["params"]} == added
