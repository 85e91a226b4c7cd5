"""Pairs of a toy language, dialogues, and the configuration of a tiny encoder–decoder."""

import random

import pytest

WORDS = {"eins": "one", "zwei": "two", "rot": "red", "blau": "blue", "Haus": "house"}


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with `my.de`, `my.en`, a folder `talk` and a folder `tiny` with a config.json."""
    from transformers import PegasusConfig

    folder = tmp_path_factory.mktemp("pairs")
    rng = random.Random(0)
    # Each source once, so that the number of pairs that are held out is known.
    rows = set()
    while len(rows) < 100:
        rows.add(tuple(rng.choices(list(WORDS), k=rng.randint(2, 5))))
    rows = sorted(rows)
    (folder / "my.de").write_text("".join(" ".join(row) + "\n" for row in rows))
    (folder / "my.en").write_text("".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows))
    (folder / "talk").mkdir()
    for name, utterances in (
        ("train", ["red", "house", "blue", "two"] * 4),
        ("valid", ["two", "blue"]),
        ("test", ["Red", "house", "one"]),
    ):
        (folder / "talk" / f"{name}.txt").write_text("\n".join(utterances))
    PegasusConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=16,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_position_embeddings=64,
    ).save_pretrained(folder / "tiny")
    return folder
