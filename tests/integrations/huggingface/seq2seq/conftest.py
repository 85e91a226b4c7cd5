"""Small encoder–decoders of many architectures, and pairs of texts in no special lengths."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM

import highrank

V, START, EOS = 40, 0, 2
TOKENS = {"vocab_size": V, "pad_token_id": 0, "eos_token_id": EOS, "decoder_start_token_id": START}
BART = {**TOKENS, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "bos_token_id": 1}
BART |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 48}
BART |= {"attention_dropout": 0.0, "activation_dropout": 0.0, "decoder_layerdrop": 0.0}
BART |= {"encoder_layerdrop": 0.0}
T5 = {**TOKENS, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1, "num_heads": 2}
T5 |= {"num_decoder_layers": 1, "dropout_rate": 0.0}
TWO = {"decoder_vocab_size": V, "share_encoder_decoder_embeddings": False}
CONFIGS = {
    "marian": lambda: transformers.MarianConfig(**BART, decoder_vocab_size=V),
    "marian of two vocabularies": lambda: transformers.MarianConfig(
        **{**BART, "vocab_size": 30}, **TWO
    ),
    "bart": lambda: transformers.BartConfig(**BART, forced_eos_token_id=EOS),
    "mbart": lambda: transformers.MBartConfig(**BART),
    "t5": lambda: transformers.T5Config(**T5),
    # Its output embedding is not that of its inputs, and its hidden states are not scaled.
    "t5 1.1": lambda: transformers.T5Config(**T5, tie_word_embeddings=False),
    "umt5": lambda: transformers.UMT5Config(**T5),
    # Where a text starts with padding, its positions depend on the cache.
    "m2m100": lambda: transformers.M2M100Config(**{**BART, "decoder_start_token_id": EOS}),
    "pegasus": lambda: transformers.PegasusConfig(**BART),
    "blenderbot-small": lambda: transformers.BlenderbotSmallConfig(**BART),
}


def make_plain(name, **fields):
    """A model with weights in no special position."""
    random = torch.Generator().manual_seed(7)
    config = CONFIGS[name]()
    for field, value in fields.items():
        setattr(config, field, value)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    if name == "t5 1.1":
        model.lm_head.weight = torch.nn.Parameter(torch.empty(config.vocab_size, 12))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Sines are not saved.
            if "embed_positions" not in key:
                parameter.normal_(0, 0.3, generator=random)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=random)
    return model


def make_trained(name, fields=None, **options):
    """An upgraded model whose components differ."""
    random = torch.Generator().manual_seed(8)
    model = highrank.upgrade(make_plain(name, **(fields or {})), **options)
    with torch.no_grad():
        for key, parameter in model.get_output_embeddings().head.named_parameters():
            if key.rpartition(".")[0] or key == "up":
                parameter.add_(torch.randn(parameter.shape, generator=random))
    return model


@pytest.fixture(scope="session")
def make():
    return SimpleNamespace(plain=make_plain, trained=make_trained)


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture
def pairs():
    """Arguments of a model: padded sources, and labels of targets that end."""
    random = torch.Generator().manual_seed(9)
    source = torch.randint(3, 30, (3, 6), generator=random)
    labels = torch.randint(3, V, (3, 8), generator=random)
    mask = torch.ones_like(source)
    source[1, 4:], mask[1, 4:] = 0, 0
    labels[:, 7], labels[0, 4], labels[0, 5:] = EOS, EOS, -100
    return {"input_ids": source, "attention_mask": mask, "labels": labels}
