"""Hugging Face models as predictors: the same log-probabilities as their own logits."""

import copy
import json
import os
import re
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from highrank.heads import linear
from highrank.integrations.huggingface import output_layer, reader
from highrank.integrations.huggingface.reader import HuggingFaceModel, HuggingFacePredictor

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers


@pytest.fixture
def saved(make, tmp_path):
    make.plain("gpt2").save_pretrained(tmp_path / "model")
    make.tokenizer(tmp_path / "model")
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


def test_no_logits_are_computed_for_hidden_states(make, watch):
    predictor = HuggingFacePredictor(make.plain("llama"), "llama")
    with watch() as seen:
        predictor.hidden_states(torch.arange(32)[None])
    assert max(seen.sizes) < 32 * 60


def test_a_saved_model_is_loaded_with_its_tokenizer_and_without_the_hub(make, saved, monkeypatch):
    monkeypatch.setattr(reader, "hub_answers", lambda name: pytest.fail(name))
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
    make.tokenizer(tmp_path, with_start=True)
    found = HuggingFaceModel(str(tmp_path))
    assert found.prefix == [1] and found.max_window == 95
    assert found.encode("w0") == [2]
    tokens = torch.tensor([[4, 5, 6]])
    with torch.no_grad():
        want = model.model(torch.tensor([[1, 4, 5, 6]])).last_hidden_state[:, 1:]
    torch.testing.assert_close(found.load().hidden_states(tokens), want)


def test_a_model_that_sees_later_tokens_is_refused():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=40, num_hidden_layers=1, **sizes)
    with pytest.raises(ValueError, match="must be a causal language model, got BertLMHeadModel"):
        HuggingFacePredictor(transformers.BertLMHeadModel(config).eval(), "bert")
    config.is_decoder = True
    HuggingFacePredictor(transformers.BertLMHeadModel(config).eval(), "bert")


def change_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def cut_off(folder, size):
    file = folder / "model.safetensors"
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)


def without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_nan(tensors):
    tensors["transformer.h.1.ln_1.weight"][3] = torch.nan


def with_code(folder):
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    change_config(folder, model_type="evil", auto_map={"AutoConfig": "evil.Config"})


def as_t5(folder):
    config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


DAMAGES = {
    "other sizes": (lambda f: change_config(f, vocab_size=61), "of FOLDER cannot be loaded: "),
    "a wrong type": (lambda f: change_config(f, n_embd="wide"), "of FOLDER cannot be loaded: "),
    "unknown": (lambda f: change_config(f, model_type="new"), "configuration of FOLDER cannot be"),
    "empty": (lambda f: cut_off(f, 0), "weights of .*: FOLDER/model.safetensors is cut off or dam"),
    "no end": (lambda f: cut_off(f, -100), "model.safetensors is cut off or damaged"),
    "no JSON": (
        lambda f: (f / "tokenizer.json").write_text('{"version": '),
        r"tokenizer of FOLDER cannot be loaded: FOLDER/tokenizer.json is no JSON \(Expecting",
    ),
    "other JSON": (
        lambda f: (f / "tokenizer.json").write_text('{"version": "1.0"}'),
        "The tokenizer of FOLDER cannot be loaded: 'added_tokens'",
    ),
    "no tokenizer": (without_tokenizer, "FOLDER has no tokenizer: a model's folder has config"),
    "a pickle": (as_pickle, r"cannot be loaded.*[^.]\. A model.*\*\.safetensors"),
    "missing weights": (
        lambda f: change_weights(f, lambda tensors: tensors.pop("transformer.ln_f.weight")),
        "cannot be loaded: no file has transformer.ln_f.weight",
    ),
    "NaN": (
        lambda f: change_weights(f, with_nan),
        "The weights of FOLDER have NaN in transformer.h.1.ln_1.weight.",
    ),
    "code": (with_code, "The configuration of"),
    "deep": (
        lambda f: (f / "config.json").write_text("[" * 10_000),
        r"configuration of FOLDER cannot be loaded: FOLDER/config.json is no JSON \(maximum rec",
    ),
    "layers": (
        lambda f: change_config(f, n_layer=10**5),
        "cannot be loaded: n_layer must be at most 4,096, got 100000",
    ),
    "two texts": (as_t5, "whose type t5 is an encoder and a decoder.*highrank translate"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_folder_that_cannot_be_loaded_says_why_in_one_line(name, saved):
    damage, message = DAMAGES[name]
    damage(saved)
    with pytest.raises(ValueError, match=message.replace("FOLDER", re.escape(str(saved)))) as found:
        HuggingFaceModel(str(saved)).load()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "adapter_config.json"])
def test_a_pipe_in_a_folder_is_refused_before_it_is_read(file, saved):
    (saved / file).unlink(missing_ok=True)
    os.mkfifo(saved / file)
    with pytest.raises(ValueError, match=f"{file} must be a plain file, got a pipe or a device"):
        HuggingFaceModel(str(saved))


@pytest.mark.parametrize("index", [60, 2**31])
def test_tokens_beyond_the_vocabulary_are_refused(index, saved):
    tokenizer = saved / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"w29": 31', f'"w29": {index}'))
    model = HuggingFaceModel(str(saved))
    assert model.encode("w1 w28") == [3, 30]
    with pytest.raises(ValueError, match=f"below its vocabulary size 60, got {index:,}"):
        model.encode("w1 w29")
