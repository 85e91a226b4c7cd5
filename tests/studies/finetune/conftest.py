"""A tiny GPT-2 with a tokenizer of bytes, and a text."""

import random

import pytest

pytest.importorskip("transformers")
WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with `base`, a model, and `tale.txt`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("finetune")
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) for _ in range(60))
    (folder / "tale.txt").write_text("\n".join(lines))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({sign: i for i, sign in enumerate(letters)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bpe).save_pretrained(folder / "base")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "base")
    return folder
