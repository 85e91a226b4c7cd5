"""The Transformer against Hugging Face's Llama, its memory, and its parameters."""

import pytest
import torch

from highrank.heads import Softmax
from highrank.models import LanguageModel, Transformer
from highrank.models.backbone import joined
from highrank.models.transformer import EPSILON

T, B, V, D, LAYERS, HEADS = 9, 3, 23, 24, 3, 2


def build(**options):
    torch.manual_seed(1)
    given = {"hidden_size": D, "num_layers": LAYERS, "num_heads": HEADS} | options
    return Transformer(V, D, **given).double().eval()


def tokens(length=T):
    return torch.randint(V, (length, B), generator=torch.Generator().manual_seed(3))


def llama_of(model):
    """Hugging Face's Llama with the weights of a Transformer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=model.layers[0].feedforward.output.in_features,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
    )
    llama = transformers.LlamaModel(config).double().eval()
    weights = {"embed_tokens.weight": model.embedding.weight, "norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        attention = ("q_proj", "k_proj", "v_proj"), layer.attention.inputs.weight.chunk(3)
        feedforward = ("gate_proj", "up_proj"), layer.feedforward.inputs.weight.chunk(2)
        weights |= {
            f"layers.{i}.input_layernorm.weight": layer.attention_norm.weight,
            f"layers.{i}.post_attention_layernorm.weight": layer.feedforward_norm.weight,
            f"layers.{i}.self_attn.o_proj.weight": layer.attention.output.weight,
            f"layers.{i}.mlp.down_proj.weight": layer.feedforward.output.weight,
            **{f"layers.{i}.self_attn.{n}.weight": w for n, w in zip(*attention, strict=True)},
            **{f"layers.{i}.mlp.{n}.weight": w for n, w in zip(*feedforward, strict=True)},
        }
    llama.load_state_dict(weights)
    return llama


def test_it_is_llama_with_the_same_weights():
    model, words = build(), tokens()
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.RMSNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    expected = llama_of(model)(words.T).last_hidden_state.transpose(0, 1)
    hidden = model(words, model.initial_state(B)).hidden
    torch.testing.assert_close(hidden, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"norm": "layer", "feedforward": "relu"}])
@pytest.mark.parametrize("cuts", [(), (1,), (4, 5), range(1, 20)])
def test_windows_change_nothing(options, cuts):
    model, words = build(memory=4, **options), tokens(20)
    whole = model(words, model.initial_state(B))
    state, parts = model.initial_state(B), []
    for part in torch.tensor_split(words, list(cuts)):
        out = model(part, state)
        state, parts = out.state, [*parts, out.hidden]
    torch.testing.assert_close(torch.cat(parts), whole.hidden)
    assert (state.seen == 4).all() and all(len(keys) == 4 for keys, _ in state.layers)


def test_sequences_of_different_lengths_continue_side_by_side():
    model, words = build(memory=4), tokens(12)
    first = model(words[:2, :1], model.initial_state(1)).state
    others = model(words[:7, 1:], model.initial_state(B - 1)).state
    text = words[7:10]
    together = model(text, joined([first, others])).hidden
    torch.testing.assert_close(together[:, :1], model(text[:, :1], first).hidden)
    torch.testing.assert_close(together[:, 1:], model(text[:, 1:], others).hidden)


def test_a_prediction_depends_on_as_many_tokens_as_is_stated():
    model, words = build(memory=2), tokens(12)
    assert model.context_length == 2 * LAYERS + 1
    hidden = model(words, model.initial_state(B)).hidden[-1]
    for distance in range(12):
        changed = words.clone()
        changed[-1 - distance] = (changed[-1 - distance] + 1) % V
        found = model(changed, model.initial_state(B)).hidden[-1]
        assert torch.equal(found, hidden) == (distance >= model.context_length)


def test_later_tokens_change_no_bit_of_earlier_hidden_states():
    model, words = build().float(), tokens()
    changed = words.clone()
    changed[5:] = (changed[5:] + 1) % V
    before, after = (model(x, model.initial_state(B)).hidden[:5] for x in (words, changed))
    assert torch.equal(before, after)


def test_parameters_are_those_of_the_published_recipe_and_a_last_norm():
    # Post-norm has none: 24,040,400 (ischlag/Fast-Weight-Memory-public, transformer_xl_ptb).
    options = {"feedforward_size": 900, "feedforward": "relu", "norm": "layer", "device": "meta"}
    backbone = Transformer(10_000, 380, 380, 16, 10, **options)
    model = LanguageModel(backbone, Softmax(380, 10_000, device="meta"))
    assert sum(p.numel() for p in model.parameters()) == 24_040_400 + 2 * 380


def test_the_network_reads_scaled_embeddings():
    plain, scaled, words = build(), build(embedding_scale=3.0), tokens()
    with torch.no_grad():
        plain.embedding.weight.mul_(3.0)
    one, other = (model(words, model.initial_state(B)).hidden for model in (plain, scaled))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert plain.embedding.weight.std() > 2 * scaled.embedding.weight.std()


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_may_have_a_learning_rate_of_their_own(tied):
    model = LanguageModel(build(embedding_lr_scale=2.0), Softmax(D, V).double(), tied)
    groups = model.parameter_groups()
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    (scaled,) = (group for group in groups if "lr_scale" in group)
    assert scaled == {"params": [model.backbone.embedding.weight], "lr_scale": 2.0}
    assert {p.dim() for p in groups[1]["params"]} == {1} and groups[1]["weight_decay"] == 0


@pytest.mark.parametrize(
    "name", ["embedding", "input", "attention", "feedforward", "hidden", "output"]
)
def test_each_dropout_acts_in_training_only(name):
    model, words = build(**{f"{name}_dropout": 0.5}), tokens()
    plain, state = build(), model.initial_state(B)
    plain.load_state_dict(model.state_dict())
    expected = plain(words, state).hidden
    torch.testing.assert_close(model(words, state).hidden, expected)
    assert not torch.allclose(model.train()(words, state).hidden, expected)


def test_a_text_that_begins_with_dropped_tokens_has_finite_gradients():
    model = build(num_layers=12, norm="layer", feedforward="relu", embedding_dropout=0.8).float()
    words = torch.arange(2 * V).view(2, V) % V
    out = model.train()(words, model.initial_state(V))
    is_dropped = (out.layers[0] == 0).all(-1)  # (T, B)
    assert is_dropped[0].any() and not is_dropped.all()
    assert (out.layers[-2][0, is_dropped[0]] == 0).all()
    (out.hidden * torch.randn(D)).sum().backward()
    assert all(p.grad.norm() < 1e4 for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "num_heads must divide hidden_size = 24 into even parts, got 5"),
        ({"num_layers": 0}, "num_layers must be between 1 and 1,000, got 0"),
        ({"memory": 0}, "memory must be at least 1, got 0"),
        ({"feedforward_size": -1}, "feedforward_size must be at least 0, got -1"),
        ({"embedding_scale": 0.0}, "embedding_scale must be positive, got 0.0"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0 and below 1, got 1.0"),
        ({"temporal_penalty": -1.0}, "temporal_penalty must be at least 0, got -1.0"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
