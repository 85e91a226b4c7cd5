"""AWD-LSTM against plain torch layers, and its dropouts one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.models import AWDLSTM, LanguageModel
from highrank.models.backbone import BackboneOutput
from highrank.models.weights import without_dropout
from highrank.ops.dropout import dropout_mask

T, B, V = 6, 3, 11
DROPOUTS = ("embedding", "input", "hidden", "output", "weight")


def backbone(**dropout):
    return AWDLSTM(V, 4, (7, 7, 5), **{f"{name}_dropout": p for name, p in dropout.items()})


def tokens(*shape):
    return torch.randint(V, shape)


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters_are_those_of_the_papers():
    def model(vocab_size, size, hidden, head):
        return LanguageModel(AWDLSTM(vocab_size, size, hidden, device="meta"), head)

    def mos(hidden_size, vocab_size, size):
        return MixtureOfSoftmaxes(hidden_size, vocab_size, 15, size, device="meta")

    assert count(model(10_000, 280, (960, 960, 620), mos(620, 10_000, 280))) == 21_500_620
    assert count(model(33_278, 300, (1150, 1150, 650), mos(650, 33_278, 300))) == 34_909_528
    for vocab_size, expected in ((10_000, 24_221_600), (33_278, 33_556_078)):
        head = Softmax(400, vocab_size, device="meta")
        assert count(model(vocab_size, 400, (1150, 1150, 400), head)) == expected


def test_without_dropout_it_is_a_stack_of_torch_lstms():
    model, words = backbone(), tokens(T, B)
    x = F.embedding(words, model.embedding.weight)
    for layer in model.layers:
        plain = nn.LSTM(layer.input_size, layer.hidden_size)
        plain.load_state_dict(layer.state_dict())
        x, _ = plain(x)
    torch.testing.assert_close(model(words, model.initial_state(B)).hidden, x)


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_acts_in_training_and_not_in_evaluation(name):
    model, words = backbone(**{name: 0.5}), tokens(T, B)
    state = model.initial_state(B)
    plain = backbone()
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(model(words, state).hidden, plain(words, state).hidden)
    with without_dropout(model):
        torch.testing.assert_close(model(words, state).hidden, plain(words, state).hidden)
    assert all(module.training for module in model.modules())


def test_the_output_mask_is_shared_over_time_and_scaled():
    model = backbone(output=0.5)
    words = tokens(T, B)
    hidden = model(words, model.initial_state(B)).hidden
    raw = model.eval()(words, model.initial_state(B)).hidden
    mask = hidden / raw  # (T, B, D)
    assert set(mask.flatten().round().int().tolist()) == {0, 2}
    torch.testing.assert_close(mask, mask[:1].expand_as(mask))
    assert not torch.equal(mask[0, 0], mask[0, 1])


def test_a_dropped_word_is_dropped_wherever_it_occurs():
    from highrank.models.backbone import embed_with_dropout

    embedding, words = nn.Embedding(V, 4), tokens(50, 4)
    ratio = (embed_with_dropout(embedding, words, 0.5) / embedding(words))[..., 0]  # (T, B)
    for word in range(V):
        assert len(set(ratio[words == word].round().tolist())) == 1
    assert set(ratio.flatten().round().int().tolist()) == {0, 2}


def test_weight_drop_masks_the_recurrent_matrix_once_per_window(monkeypatch):
    layer = backbone(weight=0.5).layers[0]
    masks = []

    def recorded(*arguments):
        masks.append(dropout_mask(*arguments))
        return masks[-1]

    monkeypatch.setattr("highrank.models.awd_lstm.dropout_mask", recorded)
    x, zeros = torch.randn(T, B, 4), torch.zeros(1, B, 7)
    found, _ = layer.run(x, (zeros, zeros))
    assert len(masks) == 1 and masks[0].shape == (28, 7)
    plain = nn.LSTM(4, 7)
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        plain.weight_hh_l0.mul_(masks[0])
    torch.testing.assert_close(found, plain(x)[0])


def test_weight_drop_trains_the_matrix_that_is_saved():
    layer = backbone(weight=0.5).layers[0]
    zeros = torch.zeros(1, B, 7)
    layer.run(torch.randn(T, B, 4), (zeros, zeros))[0].sum().backward()
    share = (layer.weight_hh_l0.grad == 0).float().mean().item()
    assert 0.3 < share < 0.7
    assert dict(layer.named_parameters()).keys() == {
        f"{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }


def test_initialisation_is_that_of_the_paper():
    model = AWDLSTM(1000, 40, (50,))
    assert 0.099 < model.embedding.weight.abs().max() <= 0.1
    for p in model.layers[0].parameters():
        assert 0.9 * 50**-0.5 < p.abs().max() <= 50**-0.5


@pytest.mark.parametrize("name", DROPOUTS)
def test_impossible_rates_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}_dropout must be at least 0 and below 1, got 1.0"):
        backbone(**{name: 1.0})


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="hidden_sizes must be 1 to 100 sizes, got 0"):
        AWDLSTM(V, 4, ())


def test_penalties_are_those_of_the_paper():
    model = backbone()
    model.activation_penalty, model.temporal_penalty = 2.0, 3.0
    hidden, raw = torch.randn(T, B, 5), torch.randn(T, B, 5)
    out = BackboneOutput(hidden, (), (), raw)
    steps = [(raw[t + 1] - raw[t]).square().mean() for t in range(T - 1)]
    want = 2.0 * hidden.square().mean() + 3.0 * torch.stack(steps).mean()
    torch.testing.assert_close(model.penalty(out), want)
    # One token has nothing before it.
    short = BackboneOutput(hidden[:1], (), (), raw[:1])
    torch.testing.assert_close(model.penalty(short), 2.0 * hidden[:1].square().mean())
    model.activation_penalty = model.temporal_penalty = 0.0
    assert model.penalty(out) == 0
