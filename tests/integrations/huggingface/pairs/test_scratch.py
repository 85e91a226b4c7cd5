"""Tokenizers that are learned from pairs, and models at random."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from highrank import upgrade
from highrank.integrations.huggingface.pairs.decoding import Beams, decode
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.integrations.huggingface.pairs.loading import EncoderDecoder, set_dropout
from highrank.integrations.huggingface.pairs.scratch import EOS, PAD, learn_tokenizer, new_model

BART = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 48}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0}
BART |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
T5 = {"d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
CONFIGS = {
    # As its folders have them: tokens of a vocabulary that is not ours.
    "Marian": BART | {"bad_words_ids": [[58100]], "forced_eos_token_id": 0},
    "Bart": BART | {"forced_bos_token_id": 0, "no_repeat_ngram_size": 3},
    "MBart": BART,
    "T5": T5,
    "UMT5": T5,
    "M2M100": BART,
    "Pegasus": BART,
    "BlenderbotSmall": BART,
}


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


def test_a_vocabulary_has_a_token_for_each_byte():
    with pytest.raises(ValueError, match="vocabulary must be at least 262, got 10"):
        learn_tokenizer(["Ein Haus"], 10)


def test_a_new_model_is_saved_and_loaded_with_its_tokenizer(model, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert other("eins zwei")["input_ids"] == tokenizer("eins zwei")["input_ids"]
    assert loaded.config.decoder_start_token_id == other.eos_token_id
    assert loaded.get_input_embeddings().num_embeddings == len(tokenizer)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_configuration_starts_at_random_and_writes_what_it_predicts(name, tokenizer, tmp_path):
    getattr(transformers, f"{name}Config")(**CONFIGS[name]).save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = upgrade(new_model(str(tmp_path), tokenizer), "mos", 2, start="random").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    # One beam keeps the likeliest token of each step; the cache must not change which that is.
    beams, sources = Beams(num_beams=1), ["eins zwei rot", "Haus"]
    encoder = TextEncoder.of(model.config, tokenizer)
    for source, found in zip(
        sources, decode(model, encoder, sources, beams, with_scores=True), strict=True
    ):
        ids = torch.tensor([*found[0].ids, tokenizer.eos_token_id])
        with torch.no_grad():
            inputs = tokenizer([source], return_tensors="pt")
            log_p = model(**inputs, labels=ids[None]).logits[0, :-1].log_softmax(-1)  # (L, V)
        assert log_p.argmax(-1).equal(ids[:-1])
        assert found[0].log_prob == pytest.approx(log_p.amax(-1).sum().item(), rel=1e-4)


def test_a_configuration_must_be_known(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="config must be transformer-tiny or a folder"):
        new_model(str(tmp_path), tokenizer)


@pytest.mark.parametrize("name", ["T5", "Pegasus"])
def test_dropout_is_changed_whatever_its_field_is_called(name, tokenizer, tmp_path):
    getattr(transformers, f"{name}Config")(**CONFIGS[name]).save_pretrained(tmp_path)
    new = new_model(str(tmp_path), tokenizer, dropout=0.4).train()
    new.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = EncoderDecoder(str(tmp_path))
    set_dropout(loaded.config, 0.0)
    old = loaded.load_weights().train()
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 1]]), "labels": torch.tensor([[3, 4, 1]])}
    losses = [[model(**inputs).loss.item() for _ in range(3)] for model in (new, old)]
    assert len(set(losses[0])) > 1 and len(set(losses[1])) == 1
    with pytest.raises(ValueError, match="dropout must go with a configuration that has dropout"):
        set_dropout(transformers.PreTrainedConfig(), 0.4)
