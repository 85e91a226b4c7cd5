"""Small Hugging Face models with random weights, of eight architectures, to be upgraded."""

import warnings
from types import SimpleNamespace

import pytest
import torch

import highrank

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers
    from transformers import AutoModelForCausalLM

V = 60
SMALL = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
WIDE = {**SMALL, "intermediate_size": 24}
FEW = {**WIDE, "num_key_value_heads": 1, "head_dim": 8}
UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(**SMALL, **UNDROPPED),
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "qwen3": lambda: transformers.Qwen3Config(**FEW),
    # Soft-capped.
    "gemma2": lambda: transformers.Gemma2Config(
        **FEW, final_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**WIDE),
    "opt": lambda: transformers.OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16, dropout=0.0),
    # With a bias.
    "phi": lambda: transformers.PhiConfig(**WIDE),
    # With a factor and a divisor of logits.
    "cohere": lambda: transformers.CohereConfig(**WIDE, logit_scale=0.5),
    "granite": lambda: transformers.GraniteConfig(**WIDE, logits_scaling=8.0),
}


def make_plain(name, scale=0.3):
    """A model with weights in no special position."""
    random = torch.Generator().manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, scale, generator=random)
    return model


def make_upgraded(name="llama", **options):
    return highrank.upgrade(make_plain(name), **options)


def make_trained(name="llama", **options):
    """An upgraded model whose components differ."""
    random = torch.Generator().manual_seed(8)
    model = make_upgraded(name, **options)
    with torch.no_grad():
        for key, parameter in model.get_output_embeddings().head.named_parameters():
            if key.rpartition(".")[0] or key == "up":
                parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.2)
    return model


@pytest.fixture(scope="session")
def make():
    """Makes models: as transformers has them, upgraded, and upgraded with trained heads."""
    return SimpleNamespace(plain=make_plain, upgraded=make_upgraded, trained=make_trained)


@pytest.fixture
def tokens():
    return torch.randint(2, V, (3, 12), generator=torch.Generator().manual_seed(9))


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture(autouse=True)
def silent():
    """Without bars; warnings of transformers go to its log."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
