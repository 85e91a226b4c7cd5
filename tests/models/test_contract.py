"""What every backbone of the list promises; tests/test_contributing.py adds the one printed there.

T time, B sequences, V vocabulary.
"""

import copy
import math

import numpy as np
import pytest
import torch

from highrank.config import StageConfig
from highrank.data.batches import TextStreams
from highrank.data.vocabulary import Vocabulary
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, score_dynamically
from highrank.evaluation.static import score
from highrank.evaluation.surprisal import surprisals
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import BACKBONES, backbone_class
from highrank.models.backbone import tensors_of
from highrank.models.language_model import LanguageModel
from highrank.signatures import arguments_of
from highrank.training.trainer import Trainer

T, B, V, E = 9, 4, 11, 6
# Small sizes; a memory that a window of T tokens goes beyond.
NEEDED = {
    "hidden_sizes": (8, 7),
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "memory": 3,
    "num_blocks": 2,
    "kernel_size": 3,
}

pytestmark = pytest.mark.parametrize("kind", BACKBONES)


def build(kind, **options):
    cls = backbone_class(kind)
    given = {name: value for name, value in NEEDED.items() if name in arguments_of(cls)}
    torch.manual_seed(2)
    backbone = cls(V, E, **(given | options))
    head = MixtureOfSoftmaxes(backbone.layer_sizes[-1], V, num_components=2, embedding_size=E)
    return LanguageModel(backbone, head).double()


def tokens(length=T):
    return torch.randint(V, (length, B), generator=torch.Generator().manual_seed(3))


def outputs(model, inputs, target, state=None):
    state = model.initial_state(inputs.shape[1]) if state is None else state
    return model(inputs, target, state, reduction="none")


def test_later_tokens_change_no_bit_of_an_earlier_output(kind):
    model, inputs, target = build(kind).eval(), tokens(), tokens()
    changed = inputs.clone()
    changed[5:] = (changed[5:] + 1) % V
    before, after = (outputs(model, x, target).output for x in (inputs, changed))
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])


def test_sequences_of_a_batch_do_not_meet(kind):
    model, inputs, target = build(kind).eval(), tokens(), tokens()
    changed = inputs.clone()
    changed[:, 1] = (changed[:, 1] + 1) % V
    before, after = (outputs(model, x, target).output for x in (inputs, changed))
    torch.testing.assert_close(before[:, [0, 2, 3]], after[:, [0, 2, 3]])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_a_window_read_in_two_parts_is_one_window(kind):
    model, inputs, target = build(kind).eval(), tokens(), tokens()
    if not tensors_of(model.backbone.initial_state(B)):
        pytest.skip("its windows stand alone")
    whole = outputs(model, inputs, target)
    first = outputs(model, inputs[:4], target[:4])
    second = outputs(model, inputs[4:], target[4:], first.state)
    torch.testing.assert_close(torch.cat((first.output, second.output)), whole.output)
    for one, other in zip(tensors_of(second.state), tensors_of(whole.state), strict=True):
        torch.testing.assert_close(one, other)


def test_hidden_states_have_the_sizes_and_the_bound_that_are_stated(kind):
    backbone = build(kind).eval().backbone
    out = backbone(tokens(), backbone.initial_state(B))
    assert [layer.shape for layer in out.layers] == [(T, B, size) for size in backbone.layer_sizes]
    assert torch.equal(out.layers[-1], out.hidden)
    if backbone.hidden_bound is not None:
        assert out.hidden.abs().max() <= backbone.hidden_bound


def test_every_parameter_is_in_one_group_and_learns(kind):
    model = build(kind)
    parameters = [p for group in model.parameter_groups() for p in group["params"]]
    assert {id(p) for p in parameters} == {id(p) for p in model.parameters()}
    assert len(parameters) == len({id(p) for p in parameters})
    model(tokens(), tokens(), model.initial_state(B)).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_resumed_training_is_the_uninterrupted_one(kind):
    text = np.random.default_rng(1).integers(0, V, 400)
    stage = StageConfig(optimizer="adamw", lr=0.01, clip=1.0)
    names = [name for name in arguments_of(backbone_class(kind)) if name.endswith("_dropout")]

    def make():
        return Trainer(build(kind, **dict.fromkeys(names, 0.3)), stage), TextStreams(
            text, B, bptt=T, bptt_std=0.0
        )

    trainer, batches = make()
    for _ in range(3):
        trainer.step(next(batches))
    saved, place = copy.deepcopy(trainer.state_dict()), copy.deepcopy(batches.state_dict())
    loss = trainer.step(next(batches))
    again, other = make()
    again.load_state_dict(saved)
    other.load_state_dict(place)
    assert again.step(next(other)) == loss
    for one, two in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_ways_to_evaluate_that_change_nothing_agree(kind):
    """Token by token, as generation reads, without learning, with a cache of no weight."""
    model, text = build(kind).eval(), np.random.default_rng(1).integers(0, V, 30)
    vocabulary = Vocabulary(("<eos>", *map(str, range(1, V))))
    text[0] = vocabulary.eos
    want = torch.cat([segment.log_prob for segment in score(model, text)])
    ways = {
        "tokens": score(model, text, window=1),
        "dynamic": score_dynamically(model, text, DynamicSettings(rule="sgd", lr=0.0, decay=0.0)),
        "cache": with_cache(score(model, text), CacheSettings(weight=0.0)),
    }
    for name, segments in ways.items():
        found = torch.cat([segment.log_prob for segment in segments])
        torch.testing.assert_close(found, want, rtol=0, atol=1e-12, msg=name)
    found = surprisals(model, vocabulary, vocabulary.decode(text[1:]))
    bits = torch.tensor([one.bits for one in found], dtype=torch.float64)
    torch.testing.assert_close(bits, -want / math.log(2), rtol=0, atol=1e-12)
