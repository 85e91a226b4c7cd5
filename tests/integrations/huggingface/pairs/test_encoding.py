"""Texts that are too long: what is left of them, and that this is known."""

import pytest
import transformers

from highrank.integrations.huggingface.pairs.encoding import LONGEST, TextEncoder


@pytest.mark.parametrize("keeps_end, want", [(False, "eins zwei"), (True, "rot Haus")])
def test_a_source_that_is_too_long_loses_its_end_or_its_beginning(tokenizer, keeps_end, want):
    limit = len(tokenizer(want)["input_ids"])
    encoder = TextEncoder(tokenizer=tokenizer, limit=limit, keeps_end=keeps_end)
    found = encoder.sources(["eins zwei rot Haus", "rot"])
    assert found.is_cut == [True, False] and [len(ids) <= limit for ids in found.ids] == [True] * 2
    assert found.ids[0] == tokenizer(want)["input_ids"]
    # A target keeps its beginning.
    assert encoder.targets(["eins zwei rot Haus"]).ids[0] == tokenizer("eins zwei")["input_ids"]
    assert tokenizer.truncation_side == "right" and encoder.sources([]) == ([], [])


def test_the_limit_is_the_shortest_table_of_positions(tokenizer):
    config = transformers.LEDConfig(
        max_encoder_position_embeddings=900, max_decoder_position_embeddings=30
    )
    assert TextEncoder.of(config, tokenizer).limit == 30
    assert TextEncoder.of(transformers.T5Config(), tokenizer).limit == LONGEST
