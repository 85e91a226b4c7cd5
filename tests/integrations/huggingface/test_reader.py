"""Hugging Face models as predictors: the same log-probabilities as their own logits."""

import copy
import json
import os
import re
import warnings

import pytest
import torch

from highrank.heads import linear
from highrank.integrations.huggingface import library, output_layer, reader
from highrank.integrations.huggingface.reader import HuggingFaceModel, HuggingFacePredictor

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors


def save_tokenizer(folder, with_start=False):
    words = ["<unk>", "<s>", *(f"w{i}" for i in range(30))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if with_start:
        inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>"
    )
    tokenizer.save_pretrained(folder)


@pytest.fixture
def saved(make, tmp_path):
    make.plain("gpt2").save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", ["plain", "trained"])
@torch.no_grad()
def test_the_head_makes_the_models_own_log_probabilities_of_the_states(make, tokens, name, kind):
    """Of plain models, and of upgraded ones; also of a text that is read in parts."""
    model = getattr(make, kind)(name)
    want = model(input_ids=tokens).logits.log_softmax(-1)
    predictor = HuggingFacePredictor(model, name)
    hidden = predictor.hidden_states(tokens)
    got = predictor.head.log_prob(hidden)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    _, _, state = predictor.read(tokens.T[:5], predictor.initial_state(3))
    rest, past, _ = predictor.read(tokens.T[5:], state)
    assert past == {}
    torch.testing.assert_close(rest, hidden[:, 5:].transpose(0, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name, scale, softcap, has_bias, is_tied",
    [
        ("gpt2", 1.0, None, False, True),
        ("gemma2", 1.0, 5.0, False, True),
        ("phi", 1.0, None, True, False),
        ("cohere", 0.5, None, False, True),
        ("granite", 0.125, None, False, False),
    ],
)
def test_scale_softcap_bias_and_tied_weights_are_found(
    make, name, scale, softcap, has_bias, is_tied
):
    found = HuggingFacePredictor(make.plain(name), name)
    head = found.head
    assert (head.scale, head.softcap, head.bias is not None) == (scale, softcap, has_bias)
    assert (found.scale, found.is_tied) == (scale, is_tied)
    upgraded = HuggingFacePredictor(make.upgraded(name), name)
    assert (upgraded.scale, upgraded.is_tied) == (scale, is_tied)


def test_chunks_of_the_vocabulary_and_copies_change_no_logit(make, monkeypatch):
    head, hidden = HuggingFacePredictor(make.plain("phi"), "phi").head, torch.randn(5, 16)
    want = head.logits(hidden)
    monkeypatch.setattr(linear, "CHUNK_TOKENS", 7)
    torch.testing.assert_close(head.logits(hidden), want)
    twin = copy.deepcopy(head).double().cpu()
    assert twin.weight.data_ptr() == head.weight.data_ptr()
    torch.testing.assert_close(twin.logits(hidden), want)


def test_a_scale_must_be_positive():
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        linear.LinearHead(torch.randn(3, 2), scale=0.0)


@pytest.mark.parametrize("name, field", [("gemma2", "SOFTCAPS"), ("cohere", "FACTORS")])
def test_a_head_that_does_something_unknown_is_refused(make, monkeypatch, name, field):
    """Even where logits are small, and a softcap does not bend them."""
    monkeypatch.setattr(output_layer, field, ())
    model = make.plain(name)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e-4)
    with pytest.raises(ValueError, match="the output layer of it must be a linear map"):
        HuggingFacePredictor(model, "it")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_are_kept_and_compute_in_float32(make, tokens, dtype):
    model = make.plain("llama").to(dtype)
    want = HuggingFacePredictor(copy.deepcopy(model).float(), "llama")
    found = HuggingFacePredictor(model, "llama")
    assert found.head.weight.dtype == found.dtype == dtype
    assert torch.equal(found.hidden_states(tokens), want.hidden_states(tokens))
    assert torch.equal(found.head.weight.float(), want.head.weight)


def test_large_logits_in_half_precision_are_no_unknown_head(make):
    """A trained model's logits reach 30, and bfloat16 rounds those by a tenth."""
    model = make.plain("llama").to(torch.bfloat16)
    with torch.no_grad():
        logits = model(torch.arange(6)[None]).logits
        model.lm_head.weight.mul_(30 / logits.abs().max())
    assert HuggingFacePredictor(model, "llama").head.weight.dtype == torch.bfloat16


def test_no_logits_are_computed_for_hidden_states(make, watch):
    predictor = HuggingFacePredictor(make.plain("llama"), "llama")
    with watch() as seen:
        predictor.hidden_states(torch.arange(32)[None])
    assert max(seen.sizes) < 32 * 60


def test_a_saved_model_is_loaded_with_its_tokenizer(make, saved):
    found = HuggingFaceModel(str(saved))
    assert found.max_window == 96 and found.prefix == []
    assert found.encode("w0 w3 nonsense") == [2, 5, 0]
    assert found.token(5) == "w3" and found.token(59) == "<59>"
    loaded = found.load()
    assert loaded.architecture == "GPT2LMHeadModel"
    assert loaded.num_parameters == make.plain("gpt2").num_parameters()


def test_windows_begin_with_the_token_that_the_tokenizer_begins_with(make, tmp_path):
    model = make.plain("llama")
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, with_start=True)
    found = HuggingFaceModel(str(tmp_path))
    assert found.prefix == [1] and found.max_window == 95
    assert found.encode("w0") == [2]
    tokens = torch.tensor([[4, 5, 6]])
    with torch.no_grad():
        want = model.model(torch.tensor([[1, 4, 5, 6]])).last_hidden_state[:, 1:]
    torch.testing.assert_close(found.load().hidden_states(tokens), want)


def test_weights_that_could_execute_code_are_refused(make, saved):
    (saved / "model.safetensors").unlink()
    torch.save(make.plain("gpt2").state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"cannot be loaded.*[^.]\. A model.*\*\.safetensors"):
        HuggingFaceModel(str(saved)).load()


def test_weights_that_are_missing_are_not_made_up(make, tmp_path):
    make.plain("llama").model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="cannot be loaded: no file has lm_head.weight"):
        HuggingFaceModel(str(tmp_path)).load()


def test_a_model_that_sees_later_tokens_is_refused():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=40, num_hidden_layers=1, **sizes)
    with pytest.raises(ValueError, match="must be a causal language model, got BertLMHeadModel"):
        HuggingFacePredictor(transformers.BertLMHeadModel(config).eval(), "bert")
    config.is_decoder = True
    HuggingFacePredictor(transformers.BertLMHeadModel(config).eval(), "bert")


def refusal(folder):
    with pytest.raises(ValueError) as found:
        HuggingFaceModel(str(folder)).load()
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("change", [{"vocab_size": 61}, {"n_embd": "wide"}, {"model_type": "new"}])
def test_configurations_that_do_not_fit_end_with_one_line(change, saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | change))
    assert f"of {saved} cannot be loaded: " in refusal(saved)


@pytest.mark.parametrize("size", [0, 1000, -100])
def test_weights_that_are_cut_off_are_named(size, saved):
    file = saved / "model.safetensors"
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    assert f"The weights of {saved} cannot be loaded: {file} is cut off or damaged" in refusal(
        saved
    )


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_no_json_is_named(name, saved):
    (saved / name).write_text('{"version": ')
    want = f"The tokenizer of {saved} cannot be loaded: {saved / name} is no JSON (Expecting value"
    assert refusal(saved).startswith(want)


def test_a_tokenizer_of_another_shape_says_what_is_missing(saved):
    (saved / "tokenizer.json").write_text('{"version": "1.0"}')
    assert refusal(saved).startswith(f"The tokenizer of {saved} cannot be loaded: 'added_tokens'")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_without_a_tokenizer_is_refused(make, name, saved):
    make.plain(name).save_pretrained(saved)
    for file in saved.glob("tokenizer*"):
        file.unlink()
    assert re.search(f"tokenizer of {saved}|{saved} has no tokenizer", refusal(saved))


def test_a_made_up_tokenizer_is_none(saved):
    for file in saved.glob("tokenizer*"):
        file.unlink()
    (saved / "vocab.txt").touch()
    assert "tokenizer" in refusal(saved)


def test_weights_that_are_no_numbers_are_named(make, saved):
    model = make.plain("gpt2")
    with torch.no_grad():
        model.transformer.h[1].ln_1.weight[3] = torch.nan
    model.save_pretrained(saved)
    assert refusal(saved) == f"The weights of {saved} have NaN in transformer.h.1.ln_1.weight."


def test_a_model_that_needs_a_source_text_is_refused(tmp_path):
    config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert "whose type t5 is an encoder and a decoder" in refusal(tmp_path)


def test_code_that_comes_with_a_model_is_refused(saved):
    (saved / "evil.py").write_text("raise SystemExit('executed')")
    config = json.loads((saved / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (saved / "config.json").write_text(json.dumps(config))
    assert "The configuration of" in refusal(saved)


def test_downloads_are_loaded_without_a_connection(saved, monkeypatch, tmp_path):
    place = tmp_path / "models--someone--it"
    (place / "snapshots").mkdir(parents=True)
    saved.rename(place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(reader, "hub_answers", lambda name: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = HuggingFaceModel("someone/it")
    assert found.encode("w0") == [2] and found.load().architecture == "GPT2LMHeadModel"


def test_the_hub_is_not_asked_for_a_folder(saved, monkeypatch):
    monkeypatch.setattr(reader, "hub_answers", lambda name: pytest.fail(name))
    assert HuggingFaceModel(str(saved)).load().architecture == "GPT2LMHeadModel"


def test_without_transformers_the_error_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"nowhere \(it is no folder here\).*'\.\[hf\]'"):
        HuggingFaceModel("nowhere")
