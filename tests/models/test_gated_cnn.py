"""The gated CNN against torch's convolutions with weight normalisation, and its context."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from highrank.models import GatedCNN

T, B, V, E, D, K, BLOCKS = 11, 3, 17, 6, 10, 3, 2


def build(**options):
    torch.manual_seed(1)
    return GatedCNN(V, E, D, BLOCKS, kernel_size=K, **options).double().eval()


def tokens(length=T):
    return torch.randint(V, (length, B), generator=torch.Generator().manual_seed(3))


def convolved(layer, x):
    """The same by conv1d, (B, channels, T), and torch's weight normalisation."""
    conv = nn.Conv1d(layer.input_size, len(layer.bias), layer.kernel_size).double()
    conv = nn.utils.parametrizations.weight_norm(conv)
    scale, direction = (
        conv.parametrizations.weight.original0,
        conv.parametrizations.weight.original1,
    )
    with torch.no_grad():
        scale.copy_(layer.scale.view_as(scale))
        direction.copy_(layer.direction.view_as(direction))
        conv.bias.copy_(layer.bias)
    value, gate = conv(F.pad(x, (layer.kernel_size - 1, 0))).chunk(2, 1)
    return value * gate.sigmoid()


def test_it_is_torchs_convolutions():
    model, words = build(), tokens()
    for p in model.parameters():
        nn.init.normal_(p)
    x = (model.embedding(words) @ model.projection.weight.T).permute(1, 2, 0)  # (B, D, T)
    for block in model.blocks:
        found = x
        for layer in (block.narrow, block.middle, block.widen):
            found = convolved(layer, found)
        x = x + found
    hidden = model(words, model.initial_state(B)).hidden
    torch.testing.assert_close(hidden, x.permute(2, 0, 1))


def test_a_prediction_depends_on_as_many_tokens_as_is_stated():
    model, words = build(), tokens()
    assert model.context_length == BLOCKS * (K - 1) + 1
    hidden = model(words, model.initial_state(B)).hidden[-1]
    for distance in range(T):
        changed = words.clone()
        changed[-1 - distance] = (changed[-1 - distance] + 1) % V
        found = model(changed, model.initial_state(B)).hidden[-1]
        assert torch.equal(found, hidden) == (distance >= model.context_length)


def test_one_token_at_a_time_is_the_whole_text():
    model, words = build(), tokens()
    whole, state = model(words, model.initial_state(B)), model.initial_state(B)
    for i, row in enumerate(words):
        out = model(row[None], state)
        torch.testing.assert_close(out.hidden[0], whole.hidden[i])
        state = out.state
        assert all(past.shape == (K - 1, B, D // 2) for past in state)


@pytest.mark.parametrize("name", ["num_blocks", "kernel_size", "hidden_size"])
def test_impossible_sizes_are_refused(name):
    options = {"hidden_size": D, "num_blocks": BLOCKS, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be .*, got 0"):
        GatedCNN(V, E, **options)
