"""Every architecture: an upgrade changes no prediction, and the result is a model of its own."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

import highrank
from highrank.integrations.huggingface import output_layer
from highrank.integrations.huggingface.output_layer import run

NEW_TOKENS = 50


@torch.no_grad()
def log_probs(model, tokens):
    return model(input_ids=tokens).logits.float().log_softmax(-1)


def greedy(model, tokens, **options):
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **options}
    return model.generate(tokens[:, :5], **options)


@pytest.mark.parametrize("start", ["residual", "identity"])
def test_no_log_probability_changes(make, name, tokens, start):
    """Nor does a logit: temperatures do not care, but `repetition_penalty` goes by their sign."""
    model = make.plain(name)
    want, logits = log_probs(model, tokens), model(input_ids=tokens).logits
    model = highrank.upgrade(model, start=start)
    torch.testing.assert_close(log_probs(model, tokens), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(input_ids=tokens).logits, logits, rtol=0, atol=2e-5)


def test_logits_are_those_of_the_mixture(make, name, tokens):
    """With one component they are linear, and with several the likeliest has the mean of them."""
    model = make.trained(name)
    hidden, logits = run(model, tokens, name)
    output = model.get_output_embeddings()
    log_p = output.head.log_prob(hidden * output.scale)
    torch.testing.assert_close(logits.log_softmax(-1), log_p)
    log_weight, context = output.head.mixture(hidden * output.scale)
    linear = F.linear(context, output.embedding.weight, output.embedding.bias)  # (3, 12, K, V)
    if output.head.logit_map is not None:
        linear = output.head.logit_map(linear)
    mean = (log_weight.exp().unsqueeze(-1) * linear).sum(-2)  # (3, 12, V)
    best = log_p.argmax(-1, keepdim=True)
    torch.testing.assert_close(logits.gather(-1, best), mean.gather(-1, best))


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_is_kept_and_what_is_not_understood_is_refused(make, monkeypatch, mode):
    model = highrank.upgrade(make.plain("llama").train(mode))
    assert all(module.training == mode for module in model.modules())
    with pytest.raises(ValueError, match="must be one with a head, got Linear"):
        model.set_output_embeddings(torch.nn.Linear(16, 60))
    monkeypatch.setattr(output_layer, "FACTORS", ())
    with pytest.raises(ValueError, match="must be a linear map with at most a scale and a softcap"):
        make.upgraded("cohere")


WAYS = ({}, {"num_beams": 3, "max_new_tokens": 8}, {"repetition_penalty": 1.5})


def test_greedy_generation_and_beams_do_not_change(make, name, tokens):
    model = make.plain(name)
    want = [greedy(model, tokens, **options) for options in WAYS]
    model = highrank.upgrade(model)
    for options, expected in zip(WAYS, want, strict=True):
        assert torch.equal(greedy(model, tokens, **options), expected), options


def test_a_saved_model_is_loaded_as_it_was_with_tied_weights(make, name, tokens, tmp_path):
    model = make.trained(name)
    want = log_probs(model, tokens)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(log_probs(loaded, tokens), want)
    for found in (model, loaded):
        found.resize_token_embeddings(64)
        is_tied = found.get_input_embeddings().weight is found.get_output_embeddings().head.weight
        assert is_tied == (name in ("gpt2", "gemma2", "opt", "cohere"))


def test_the_vocabulary_is_resized(make, name, tokens):
    model = make.trained(name)
    want = log_probs(model, tokens)
    model.resize_token_embeddings(64)
    assert model(input_ids=tokens).logits.shape == (3, 12, 64)
    assert model.config.vocab_size == model.get_output_embeddings().head.vocab_size == 64
    assert model.train()(input_ids=tokens, labels=tokens + 3).loss.isfinite()
    model.eval().resize_token_embeddings(60)
    torch.testing.assert_close(log_probs(model, tokens), want)


def test_the_loss_of_training_is_that_of_the_log_probabilities(make, name, tokens):
    """With gradients of all weights, tied ones included."""
    model = make.trained(name).train()
    found = []
    for options in ({"return_logits": True}, {}, None):
        model.zero_grad()
        if options is None:
            logits = model(input_ids=tokens).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        else:
            output = model(input_ids=tokens, labels=tokens, **options)
            assert ("logits" in output) == bool(options)
            loss = output.loss
        loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters()})
        found[-1]["loss"] = loss.detach()
    for one in found[:2]:
        torch.testing.assert_close(one, found[2], rtol=1e-4, atol=1e-5)


def test_the_plain_class_refuses_the_folder(make, name, tmp_path):
    plain = type(make.plain(name))
    make.upgraded(name).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="import highrank and load it with Auto"):
        plain.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_caches_and_padding_change_nothing(make, name, tokens):
    model = make.trained(name)
    want, short = log_probs(model, tokens), tokens.new_zeros(3, 2)
    assert torch.equal(greedy(model, tokens), greedy(model, tokens, use_cache=False))
    mask = torch.cat([torch.ones_like(tokens), torch.zeros_like(short)], 1)
    right = model(input_ids=torch.cat([tokens, short], 1), attention_mask=mask).logits[:, :12]
    places = torch.cat([short, torch.arange(12).expand(3, 12)], 1)
    given = {"attention_mask": mask.flip(1), "position_ids": places}
    left = model(input_ids=torch.cat([short, tokens], 1), **given).logits[:, 2:]
    kept = model(input_ids=tokens, logits_to_keep=torch.tensor([2, 5])).logits
    for found, expected in ((right, want), (left, want), (kept, want[:, [2, 5]])):
        torch.testing.assert_close(found.log_softmax(-1), expected, rtol=0, atol=1e-5)


def test_sampling_follows_the_mixture(make, tokens):
    """With the temperature that is asked for, on the mixture's probabilities."""
    model = make.trained("llama")
    torch.manual_seed(1)
    options = {"max_new_tokens": 1, "do_sample": True, "temperature": 2.0, "top_k": 0}
    found = model.generate(tokens[:1, :4].expand(4000, 4), **options)
    want = (log_probs(model, tokens[:1, :4])[0, -1] / 2).softmax(-1)
    shares = torch.bincount(found[:, -1], minlength=60) / len(found)
    assert (shares - want).abs().max() < 6 * (0.25 / len(found)) ** 0.5
