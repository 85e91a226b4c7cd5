"""16-bit models compute as if they were float32, at once or layer by layer."""

import copy
import warnings

import pytest
import torch
from torch import nn

from highrank.integrations.huggingface import float32
from highrank.integrations.huggingface.float32 import compute_in_float32, convert_by_layer

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SIZES, "intermediate_size": 24}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(**SIZES),
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "qwen2": lambda: transformers.Qwen2Config(**WIDE, num_key_value_heads=1),
    "gemma2": lambda: transformers.Gemma2Config(**WIDE, head_dim=8, num_key_value_heads=1),
    "neox": lambda: transformers.GPTNeoXConfig(**WIDE),
    "opt": lambda: transformers.OPTConfig(**SIZES, ffn_dim=24, word_embed_proj_dim=12),
    "phi": lambda: transformers.PhiConfig(**WIDE),
    "bloom": lambda: transformers.BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=2),
    "mixtral": lambda: transformers.MixtralConfig(
        **WIDE, num_key_value_heads=1, num_local_experts=3
    ),
    "mamba": lambda: transformers.MambaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4
    ),
}
TOKENS = torch.arange(12)[None] % 40


def make(name):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    return model.to(torch.bfloat16)


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_that_are_converted_one_by_one_compute_as_the_whole_model_does(name):
    model = make(name)
    want = logits_of(copy.deepcopy(model).float())
    convert_by_layer(model)
    assert torch.equal(logits_of(model), want)


def test_memory_decides_whether_all_weights_are_converted_at_once(monkeypatch):
    model = make("llama")
    needed = 4 * sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    for free, dtype in ((2 * needed - 2, torch.bfloat16), (2 * needed, torch.float32)):
        monkeypatch.setattr(float32, "free_memory", lambda free=free: free)
        twin = copy.deepcopy(model)
        compute_in_float32(twin)
        assert twin.model.layers[0].mlp.up_proj.weight.dtype == dtype
        assert logits_of(twin).dtype == torch.float32


def test_one_layer_is_converted_at_a_time():
    model = make("llama")
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
