"""Every encoder–decoder: an upgrade changes no prediction, and the result is a model of its own."""

import copy
import functools
import pickle

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModel, AutoModelForSeq2SeqLM

import highrank
from highrank.integrations.huggingface.seq2seq import input_embedding
from highrank.integrations.huggingface.upgrade import to_softmax

WAYS = (
    {"num_beams": 3, "max_new_tokens": 30, "min_new_tokens": 30},
    {"num_beams": 3, "max_new_tokens": 6, "forced_bos_token_id": 5, "forced_eos_token_id": 2},
    {"max_new_tokens": 8, "repetition_penalty": 1.5},
)


@torch.no_grad()
def log_probs(model, pairs):
    return model(**pairs).logits.log_softmax(-1)


def generated(model, pairs, **options):
    texts = {name: pairs[name] for name in ("input_ids", "attention_mask")}
    return model.generate(**texts, **{"do_sample": False, **options})


def output_of(model):
    return model.get_output_embeddings()


def test_no_log_probability_changes_nor_does_a_beam_or_the_loss(make, name, pairs):
    """The loss is transformers' own, from labels that the model itself shifts."""
    model = make.plain(name)
    want = model(**pairs)
    texts = [generated(model, pairs, **options) for options in WAYS]
    model = highrank.upgrade(model)
    assert type(model).__name__.startswith("HighRank")
    found = model(**pairs)
    torch.testing.assert_close(found.logits, want.logits, rtol=0, atol=2e-5)
    before, after = want.logits.log_softmax(-1), found.logits.log_softmax(-1)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    for options, text in zip(WAYS, texts, strict=True):
        assert torch.equal(generated(model, pairs, **options), text), options
    trained = model.train()(**pairs)
    assert set(trained) == {"loss", "encoder_last_hidden_state"}
    for loss in (found.loss, trained.loss):
        torch.testing.assert_close(loss, want.loss, rtol=0, atol=1e-5)


@pytest.mark.parametrize("start", ["identity", "new"])
def test_other_starts_change_as_little(make, pairs, start):
    """The bias of the old logits is in every component."""
    model = make.plain("marian")
    want = log_probs(model, pairs).exp()
    found = log_probs(highrank.upgrade(model, start=start), pairs).exp()
    assert (found - want).abs().sum(-1).max() / 2 <= (1e-4 if start == "new" else 1e-5)


# Renamed in transformers 5.23; 5.22 has the old name only.
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_:FutureWarning")
def test_the_loss_of_training_is_that_of_the_log_probabilities(make, name, pairs):
    """With gradients of all weights, tied ones included, and with checkpoints in their place."""
    model = make.trained(name).train()
    found = []
    for way in ("ours", "checkpoints", "reference"):
        model.zero_grad()
        if way == "checkpoints":
            model.gradient_checkpointing_enable()
        loss = model(**pairs).loss
        if way == "reference":
            logits = model(**pairs, return_logits=True).logits
            loss = F.cross_entropy(logits.flatten(0, 1), pairs["labels"].flatten())
        loss.backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append(grads | {"loss": loss.detach()})
        model.gradient_checkpointing_disable()
    assert f"{output_of_path(model)}.head.up" in found[0]
    for one in found[:2]:
        torch.testing.assert_close(one, found[2], rtol=1e-4, atol=1e-5)


def output_of_path(model):
    return next(n for n, module in model.named_modules() if module is output_of(model))


def test_a_saved_model_is_loaded_as_it_was_with_tied_weights(make, name, pairs, tmp_path):
    model = make.trained(name)
    want = log_probs(model, pairs)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model) is type(highrank.load_huggingface(tmp_path))
    assert torch.equal(log_probs(loaded, pairs), want)
    start = model.config.decoder_start_token_id
    assert loaded.generation_config.decoder_start_token_id == start
    for found in (model, loaded):
        is_tied = input_embedding(found).weight is output_of(found).embedding.weight
        assert is_tied == (name != "t5 1.1")
    assert "AutoModelForSeq2SeqLM.from_pretrained" in (tmp_path / "README.md").read_text()
    with pytest.raises(ValueError, match="import highrank and load it with .*Seq2SeqLM"):
        type(make.plain(name)).from_pretrained(tmp_path)


def resize(model, size):
    if getattr(model.config, "share_encoder_decoder_embeddings", True):
        model.resize_token_embeddings(size)
    else:
        model.resize_decoder_token_embeddings(size)


def test_the_vocabulary_is_resized_with_its_bias(make, name, pairs):
    """One that grows and shrinks again is as it was; new tokens only take from the others."""
    equal, model = highrank.upgrade(make.plain(name)), make.trained(name)
    before, want = log_probs(equal, pairs), log_probs(model, pairs)
    for resized in (equal, model):
        resize(resized, 44)
        head = output_of(resized).head
        assert head.vocab_size == len(head.weight) == 44
        assert head.bias is None or (len(head.bias) == 44 and not head.bias[40:].any())
        assert (input_embedding(resized).weight is head.weight) == (name != "t5 1.1")
    found = log_probs(equal, pairs)[..., :40].log_softmax(-1)
    torch.testing.assert_close(found, before, rtol=0, atol=1e-5)
    new = {**pairs, "labels": pairs["labels"].clamp_min(41)}
    assert model.train()(**new).loss.isfinite()
    resize(model.eval(), 40)
    torch.testing.assert_close(log_probs(model, pairs), want, rtol=0, atol=1e-5)


def test_padding_of_the_source_on_either_side_acts_as_before(make, name, pairs):
    """To the right it changes nothing; to the left it is up to the architecture's positions."""
    source, mask = pairs["input_ids"], pairs["attention_mask"]
    left = {**pairs, "input_ids": source.flip(1), "attention_mask": mask.flip(1)}
    model = make.plain(name)
    want = log_probs(model, left)
    torch.testing.assert_close(log_probs(highrank.upgrade(model), left), want, rtol=0, atol=1e-5)
    model = make.trained(name)
    short = {key: value[1:2] for key, value in pairs.items()}
    alone = {**short, "input_ids": source[1:2, :4], "attention_mask": mask[1:2, :4]}
    torch.testing.assert_close(
        log_probs(model, pairs)[1:2], log_probs(model, alone), rtol=0, atol=1e-5
    )


def test_auto_model_loads_the_body_and_a_model_can_be_pickled_and_copied(make, pairs, tmp_path):
    for name in ("bart", "t5"):
        model = make.trained(name)
        model.save_pretrained(tmp_path)
        assert type(AutoModel.from_pretrained(tmp_path)).__name__.startswith("HighRank")
        for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert type(twin) is type(model)
            assert torch.equal(log_probs(twin, pairs), log_probs(model, pairs))


def test_a_class_makes_a_model_with_random_weights(make, name, pairs):
    """From a configuration alone, as for training from scratch."""
    fresh = type(make.trained(name))(make.trained(name).config)
    assert fresh.train()(**pairs).loss.isfinite()
    assert output_of(fresh).head.up.std() > 0


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "t5 1.1"])
def test_equal_components_become_a_softmax_again(make, name, pairs, tmp_path):
    model = make.plain(name)
    before, fields = log_probs(model, pairs), model.config.to_dict()
    restored = to_softmax(highrank.upgrade(model, noise=0.0))
    assert type(restored) is type(model) and restored.config.to_dict() == fields
    torch.testing.assert_close(log_probs(restored, pairs), before, rtol=0, atol=1e-5)
    restored.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(log_probs(loaded, pairs), before, rtol=0, atol=1e-5)


HEADS = ("softmax", "mos", "moc", "adaptive-softmax", "adaptive-mos", "sparse-mos", "mixtape")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["marian", "t5"])
def test_heads_are_trained_from_scratch(make, name, head, pairs, tmp_path):
    model = highrank.upgrade(make.plain(name), head=head, start="random", num_components=2).train()
    loss = model(**pairs).loss
    loss.backward()
    assert loss.isfinite() and output_of(model).embedding.weight.grad is not None
    model.eval().save_pretrained(tmp_path)
    want = log_probs(model, pairs)
    kept = pairs["labels"] != -100
    target = pairs["labels"][kept]
    torch.testing.assert_close(F.nll_loss(want[kept], target), model(**pairs).loss)
    assert torch.equal(log_probs(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), pairs), want)


def test_what_is_not_understood_is_refused(make, monkeypatch):
    """Heads that look back have a state, which no search of transformers would reorder."""
    with pytest.raises(ValueError, match="last hidden state only, got mos.pointer, with earlier"):
        highrank.upgrade(make.plain("bart"), head="mos+pointer", start="random")
    sizes = {"vocab_size": 40, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 2}
    sizes |= {"num_heads": 2, "decoder_start_token_id": 0, "num_experts": 2}
    experts = AutoModelForSeq2SeqLM.from_config(transformers.SwitchTransformersConfig(**sizes))
    with pytest.raises(ValueError, match="cross-entropy of its logits and labels, got penalties"):
        highrank.upgrade(experts)
    model = make.plain("bart")
    with pytest.raises(ValueError, match="must be a BartForConditionalGeneration, got BartModel$"):
        highrank.upgrade(model.model)
    decoder = transformers.BartForCausalLM(copy.deepcopy(model.config))
    with pytest.raises(ValueError, match="must be a BartForConditional.*, got BartForCausalLM"):
        highrank.upgrade(decoder)
    smoothed = functools.partial(torch.nn.CrossEntropyLoss, label_smoothing=0.5)
    monkeypatch.setattr("transformers.models.bart.modeling_bart.CrossEntropyLoss", smoothed)
    with pytest.raises(ValueError, match=r"logits and labels, got [\d.]+ instead of [\d.]+"):
        highrank.upgrade(model)
