"""Tokenizers that are learned from pairs, and models at random."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from highrank.integrations.huggingface.pairs.scratch import EOS, PAD, learn_tokenizer, new_model


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_nothing_of_a_text_is_lost(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in ids[:-1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_what_looks_like_an_end_is_text(tokenizer):
    ids = tokenizer(f"a {EOS} {PAD}")["input_ids"]
    assert ids.count(tokenizer.eos_token_id) == 1 and tokenizer.pad_token_id not in ids


def test_a_word_is_the_same_at_the_start_and_within(tokenizer):
    alone, within = (tokenizer(text)["input_ids"] for text in ("Haus", "rot Haus"))
    assert within[-len(alone) :] == alone


def test_case_can_be_left_out_by_the_tokenizer():
    lower = learn_tokenizer(["Ein HAUS"] * 9, 280, lower=True)
    assert lower("Ein Haus") == lower("ein haus")


def test_a_new_model_is_saved_and_loaded_with_its_tokenizer(model, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert other("eins zwei")["input_ids"] == tokenizer("eins zwei")["input_ids"]
    assert loaded.config.decoder_start_token_id == other.pad_token_id
    assert loaded.get_input_embeddings().num_embeddings == len(tokenizer)


def test_a_configuration_must_be_known(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="config must be transformer-tiny or a folder"):
        new_model(str(tmp_path), tokenizer)
