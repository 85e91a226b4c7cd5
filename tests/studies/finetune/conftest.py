"""A tiny GPT-2 with a tokenizer of bytes, and a text."""

import random

import pytest

from highrank.studies.finetune.result import Arm, Components, Point

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


def arm(variant, seed, curve, step_seconds, components=None):
    """With points (step, nats)."""
    points = tuple(
        Point(step=s, seconds=s * step_seconds, train_nats=n, valid_nats=n, components=components)
        for s, n in curve
    )
    return Arm(
        variant=variant,
        seed=seed,
        num_parameters=1000,
        num_trained=900,
        step_seconds=step_seconds,
        points=points,
    )


@pytest.fixture
def arms():
    """A mixture that is better at equal tokens and worse at equal time, for two seeds."""
    state = Components(
        divergence=0.2,
        num_collapsed=1,
        num_dead=0,
        specialisation=0.3,
        gate_information=0.2,
        state="specialised",
    )
    return [
        arm("softmax", 0, [(0, 5.0), (100, 4.0), (200, 3.5)], 1.0),
        arm("residual", 0, [(0, 5.0), (100, 3.9)], 2.0, state),
        arm("softmax", 1, [(0, 5.0), (100, 4.1), (200, 3.6)], 1.0),
        arm("residual", 1, [(0, 5.0), (100, 3.98)], 2.0, state),
    ]
