"""16-bit models compute as if they were float32, at once or layer by layer."""

import copy

import pytest
import torch
import transformers
from torch import nn

from highrank.integrations.huggingface import float32
from highrank.integrations.huggingface.float32 import compute_in_float32, convert_by_layer

TOKENS = torch.arange(12)[None] % 40
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2}
EXPERTS = {**HEADS, "num_key_value_heads": 1, "intermediate_size": 24, "num_local_experts": 3}
# With experts, without attention, with projections outside of the layers.
OTHERS = {
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, **EXPERTS),
    "mamba": lambda: transformers.MambaConfig(**SIZES, state_size=4),
    "opt": lambda: transformers.OPTConfig(**SIZES, **HEADS, ffn_dim=24, word_embed_proj_dim=12),
}


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt-neox", "phi", *OTHERS])
def test_layers_that_are_converted_one_by_one_compute_as_the_whole_model_does(make, name):
    if name in OTHERS:
        model = transformers.AutoModelForCausalLM.from_config(OTHERS[name]()).eval()
    else:
        model = make.plain(name)
    model.to(torch.bfloat16)
    want = logits_of(copy.deepcopy(model).float())
    convert_by_layer(model)
    assert torch.equal(logits_of(model), want)


def test_memory_decides_whether_all_weights_are_converted_at_once(make, monkeypatch):
    model = make.plain("llama").to(torch.bfloat16)
    needed = 4 * sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    for free, dtype in ((2 * needed - 2, torch.bfloat16), (2 * needed, torch.float32)):
        monkeypatch.setattr(float32, "free_memory", lambda free=free: free)
        twin = copy.deepcopy(model)
        compute_in_float32(twin)
        assert twin.model.layers[0].mlp.up_proj.weight.dtype == dtype
        assert logits_of(twin).dtype == torch.float32


def test_one_layer_is_converted_at_a_time(make):
    model = make.plain("llama").to(torch.bfloat16)
    convert_by_layer(model)
    layers, wide = model.model.layers, []
    for layer in layers:
        layer.mlp.register_forward_hook(lambda *_: wide.append(converted(layers)))
    logits_of(model)
    assert wide == [[True, False], [False, True]] and converted(layers) == [False, False]


def converted(layers):
    return [all(p.dtype == torch.float32 for p in layer.parameters()) for layer in layers]


def test_weights_are_restored_after_an_error():
    class Broken(nn.Linear):
        def forward(self, hidden):
            raise ValueError("broken")

    model = nn.ModuleDict({"layers": nn.ModuleList([Broken(2, 2)]), "norm": nn.LayerNorm(2)})
    model.to(torch.bfloat16)
    convert_by_layer(model)
    with pytest.raises(ValueError, match="broken"):
        model["layers"][0](torch.zeros(1, 2))
    assert model["layers"][0].weight.dtype == torch.bfloat16
    assert model["norm"].weight.dtype == torch.float32
