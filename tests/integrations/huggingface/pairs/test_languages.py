"""Models of several languages, and prefixes of T5: told once, and saved with the model."""

import io
import json

import pytest
import torch
import transformers

from highrank import upgrade
from highrank.integrations.huggingface.pairs.decoding import Beams, decode
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.integrations.huggingface.pairs.loading import EncoderDecoder

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZES = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 48}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


def mbart(folder):
    scores = [(token, 0.0) for token in SPECIAL] + [("▁", -2.0), ("▁eins", -3.0), ("▁one", -3.0)]
    return transformers.MBartTokenizer(vocab=[*scores, ("de_DE", 0.0), ("en_XX", 0.0)])


def mbart_50(folder):
    # A vocabulary of sentencepiece; the tokenizer adds its languages.
    scores = [(token, 0.0) for token in ("<unk>", "<s>", "</s>")]
    return transformers.MBart50Tokenizer(vocab=[*scores, ("▁eins", -3.0), ("▁one", -3.0)])


def nllb(folder):
    tokens = [*SPECIAL, "▁", *"einso", "deu_Latn", "eng_Latn"]
    return transformers.NllbTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])


def m2m100(folder):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["eins", "one"] * 9),
        model_writer=model,
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "spm").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [*SPECIAL, *(pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()))]
    (folder / "tokens.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return transformers.M2M100Tokenizer(str(folder / "tokens.json"), str(folder / "spm"))


MODELS = {
    "mbart": (mbart, transformers.MBartConfig, ("de_DE", "en_XX")),
    "mbart-50": (mbart_50, transformers.MBartConfig, ("de_DE", "en_XX")),
    "nllb": (nllb, transformers.M2M100Config, ("deu_Latn", "eng_Latn")),
    "m2m100": (m2m100, transformers.M2M100Config, ("de", "en")),
}


@pytest.fixture(params=MODELS)
def folder_and_languages(request, tmp_path):
    make, config_type, languages = MODELS[request.param]
    tokenizer = make(tmp_path)
    size = max(len(tokenizer), 130)
    config = config_type(**SIZES, vocab_size=size, decoder_start_token_id=2)
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model", languages


def best(found, model):
    encoder = TextEncoder.of(found.config, found.tokenizer)
    (one,) = decode(model, encoder, ["eins"], Beams(num_beams=2), with_scores=True)[0]
    return one


def test_a_language_is_written_first_and_saved_with_the_model(folder_and_languages, tmp_path):
    folder, (source, target) = folder_and_languages
    found = EncoderDecoder(str(folder), source_lang=source, target_lang=target)
    model = upgrade(found.load_weights(), "mos", 2).eval()
    one, language = best(found, model), found.languages[target]
    assert found.languages[source] in found.tokenizer("eins")["input_ids"]
    start, forced = model.config.decoder_start_token_id, one.ids[:1] == (language,)
    assert forced or start == language
    assert target not in one.text and f"__{target}__" not in one.text
    # What is forced was not predicted: it has no log-probability.
    read = torch.tensor([[start, *one.ids]])
    with torch.no_grad():
        inputs = found.tokenizer(["eins"], return_tensors="pt")
        logits = model(**inputs, decoder_input_ids=read[:, :-1]).logits
    log_p = logits.log_softmax(-1)[0].gather(-1, read[0, 1:, None])  # (L, 1)
    assert one.log_prob == pytest.approx(log_p[int(forced) :].sum().item(), abs=1e-3)
    # Labels that the tokenizer makes begin in the same way.
    labels = torch.tensor([found.tokenizer(text_target="one")["input_ids"]])
    first = model.prepare_decoder_input_ids_from_labels(labels)[0, 0]
    assert first == start and (labels[0, 0] == language) == forced

    model.save_pretrained(tmp_path / "saved")
    found.tokenizer.save_pretrained(tmp_path / "saved")
    again = EncoderDecoder(str(tmp_path / "saved"))
    other = best(again, again.load_weights())
    assert other.ids == one.ids and again.tokenizer.src_lang == source


def test_languages_that_a_model_does_not_have_are_refused(folder_and_languages):
    folder, (source, target) = folder_and_languages
    with pytest.raises(ValueError, match=f"-lang must be given with .*, which has .*{target}"):
        EncoderDecoder(str(folder), source_lang=source)
    with pytest.raises(ValueError, match=f"target-lang must be a language .*, got xx: .*{source}"):
        EncoderDecoder(str(folder), source_lang=source, target_lang="xx")


def test_a_model_of_one_language_has_no_choice(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must go with a model of several languages"):
        EncoderDecoder(str(tmp_path), target_lang="en")


def test_a_prefix_stands_before_each_source_and_is_saved(tokenizer, tmp_path):
    sizes = {"d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    sizes |= {"vocab_size": len(tokenizer), "decoder_start_token_id": 0}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    found = EncoderDecoder(str(tmp_path), source_prefix="rot: ")
    plain = found.load_weights()
    for number, model in enumerate((plain, upgrade(plain, "mos", 2))):
        model.save_pretrained(tmp_path / str(number))
        tokenizer.save_pretrained(tmp_path / str(number))
        again = EncoderDecoder(str(tmp_path / str(number)))
        encoder = TextEncoder.of(again.config, again.tokenizer)
        assert encoder.sources(["eins"]).ids == [tokenizer("rot: eins")["input_ids"]]
        assert encoder.targets(["one"]).ids == [tokenizer("one")["input_ids"]]
