"""What cannot be upgraded or loaded is refused, with the reason and before anything is lost."""

import copy
import json
import pickle

import pytest
import torch
import transformers

import highrank
from highrank.integrations.huggingface import library
from highrank.integrations.huggingface import model as classes

MFS = {"head": "mfs", "start": "random"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head": "hardmax"}, "head.kind must be one of softmax, .* got 'hardmax'"),
        ({"start": "warm"}, "start must be 'residual' or 'identity' or 'new' or 'random' .*'warm'"),
        ({"head": "mixtape"}, r"start must be 'random' \(to train from scratch\) for mixtape"),
        (
            {"head": "mos+pointer", "start": "random"},
            "last hidden state only, got mos.pointer, with earl",
        ),
        (
            {"head": "doc", "start": "random"},
            "last hidden state only, got doc, with several layers",
        ),
        ({**MFS, "num_previous": 2}, "last hidden state only, got mfs, with earlier tokens"),
        ({**MFS, "layers": (-2, -1), "layer_sizes": (8, 8)}, "got mfs, with several layers"),
        (
            {"head": "adaptive-softmax", "start": "random", "frequent": 20, "div_value": 2.0},
            r"one output embedding of \(60, 16\)",
        ),
        ({"ranks": 3}, "an option of low-rank-mos must be one of num_components, .* got 'ranks'"),
        ({"num_components": 0}, "num_components must be at least 1, got 0"),
        ({"num_components": 1, "start": "new"}, "num_components must be at least 2 .* got 1"),
        ({"bias": True}, "bias must be left out, got one: the model or the start decides it"),
        ({"start": "identity", "activation": "tanh"}, "activation must be left out"),
        ({"noise": -1.0}, "noise must be finite and at least 0, got -1"),
    ],
)
def test_wrong_options_leave_the_model_as_it_was(make, tokens, options, message):
    model = make.plain("llama").train()
    names = [name for name, _ in model.named_modules()]
    with pytest.raises(ValueError, match=message):
        highrank.upgrade(model, **options)
    assert [name for name, _ in model.named_modules()] == names and model.training


def test_only_a_plain_causal_model_is_upgraded(make):
    with pytest.raises(ValueError, match="must have a linear output layer, got an upgraded one"):
        highrank.upgrade(make.upgraded("llama"))
    with pytest.raises(
        ValueError, match="AutoModelForCausalLM or AutoModelForSeq2SeqLM, got Linear"
    ):
        highrank.upgrade(torch.nn.Linear(2, 3))
    with pytest.raises(ValueError, match="must be a LlamaForCausalLM, got LlamaModel$"):
        highrank.upgrade(make.plain("llama").model)
    lost, spread = make.plain("llama"), make.plain("llama")
    lost.loss_function, spread.hf_device_map = lambda **_: None, {"model": 0, "lm_head": 1}
    for model, contract in ((lost, "have its own loss"), (spread, "be on one device")):
        with pytest.raises(ValueError, match=f"must {contract}, got LlamaForCausalLM"):
            highrank.upgrade(model)


@pytest.mark.filterwarnings("ignore")
def test_what_hides_a_model_is_refused_with_the_order_that_works(make):
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(target_modules=["q_proj"])
    wrapped = {
        "upgrade first, then add adapters": peft.get_peft_model(make.plain("llama"), adapter),
        "upgrade first, then wrap or compile": torch.compile(make.plain("llama")),
        "then wrap": torch.nn.DataParallel(make.plain("llama")),
    }
    for message, model in wrapped.items():
        with pytest.raises(ValueError, match=f"got .*: .*{message}"):
            highrank.upgrade(model)
    added = make.plain("llama")
    added.add_adapter(adapter)
    with pytest.raises(ValueError, match="upgrade first, then add adapters"):
        highrank.upgrade(added)


def test_an_architecture_with_its_own_way_to_a_loss_is_refused():
    sizes = {"vocab_size": 60, "d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2}
    config = transformers.TrOCRConfig(**sizes, decoder_ffn_dim=8)
    with pytest.raises(ValueError, match="must give its logits to loss_function, got TrOCRForCaus"):
        highrank.upgrade(transformers.AutoModelForCausalLM.from_config(config))


def test_a_folder_without_a_weight_of_the_head_is_refused(make, tmp_path):
    from safetensors.torch import load_file, save_file

    make.upgraded("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.head.up"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="the weights must have lm_head.head.up, got none"):
        highrank.load_huggingface(tmp_path)


@pytest.mark.parametrize("kind", ["no-such-model", "highrank"])
def test_a_folder_of_an_unknown_architecture_is_refused(make, tmp_path, kind):
    make.upgraded("llama").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_type": kind}))
    with pytest.raises(ValueError, match=f"base_model_type must be one of transf.* got '{kind}'"):
        highrank.load_huggingface(tmp_path)


def test_without_transformers_the_error_is_the_command(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"to upgrade .* pip install '\.\[hf\]'"):
        highrank.upgrade(None)
    with pytest.raises(ValueError, match=r"to load .* pip install '\.\[hf\]'"):
        highrank.load_huggingface("gpt2")
    monkeypatch.undo()
    monkeypatch.setattr(library, "version", lambda name: "5.21.3")
    with pytest.raises(ValueError, match="must be 5.22 or newer .* got 5.21.3"):
        highrank.register()


def test_a_model_can_be_pickled_and_copied(make, tokens):
    model = make.trained("gpt2")
    want = model(input_ids=tokens).logits
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(twin) is type(model)
        assert torch.equal(twin(input_ids=tokens).logits, want)
    assert classes.HighRankGPT2Config is type(model.config)
    with pytest.raises(AttributeError, match="no attribute 'HighRankNothing'"):
        _ = classes.HighRankNothing


def test_buffers_that_no_file_has_are_made_when_a_model_is_loaded(tokens, tmp_path):
    """As FalconH1 makes one from its configuration, in the place where weights are initialised."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "lm_head_multiplier": 0.5}
    sizes |= {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4}
    config = transformers.FalconH1Config(**sizes, mamba_chunk_size=8)
    model = highrank.upgrade(transformers.AutoModelForCausalLM.from_config(config).eval())
    model.save_pretrained(tmp_path)
    loaded = highrank.load_huggingface(tmp_path)
    found, want = (m(input_ids=tokens, use_cache=False).logits for m in (loaded, model))
    assert torch.equal(found, want)
