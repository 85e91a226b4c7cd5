"""A tiny encoder–decoder with a tokenizer of its pairs."""

import random

import pytest

pytest.importorskip("transformers")
WORDS = {"eins": "one", "zwei": "two", "rot": "red", "blau": "blue", "Haus": "house"}
TINY = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
TINY |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


@pytest.fixture(scope="session")
def sources():
    rng = random.Random(0)
    return [" ".join(rng.choices(list(WORDS), k=rng.randint(1, 7))) for _ in range(40)]


@pytest.fixture(scope="session")
def tokenizer(sources):
    from highrank.integrations.huggingface.pairs.scratch import learn_tokenizer

    return learn_tokenizer([*sources, *WORDS.values()], 300)


@pytest.fixture(scope="session")
def encoder(model, tokenizer):
    from highrank.integrations.huggingface.pairs.encoding import TextEncoder

    return TextEncoder.of(model.config, tokenizer)


@pytest.fixture(scope="session")
def model(tokenizer):
    """Upgraded to a mixture of three softmaxes, and spread so that beams differ."""
    import torch

    from highrank import upgrade
    from highrank.integrations.huggingface.pairs.scratch import new_model

    torch.manual_seed(0)
    plain = new_model("transformer-tiny", tokenizer, **TINY)
    with torch.no_grad():
        plain.get_output_embeddings().weight.mul_(4)
    return upgrade(plain, "mos", 3, start="random").eval()
