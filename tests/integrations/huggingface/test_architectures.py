"""Every architecture: an upgrade changes no prediction, and the result is a model of its own."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import highrank

NEW_TOKENS = 50


@torch.no_grad()
def log_probs(model, tokens):
    return model(input_ids=tokens).logits.float().log_softmax(-1)


def greedy(model, tokens, **options):
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **options}
    return model.generate(tokens[:, :5], **options)


@pytest.mark.parametrize("start", ["residual", "identity"])
def test_no_log_probability_changes(make, name, tokens, start):
    model = make.plain(name)
    want = log_probs(model, tokens)
    got = highrank.upgrade(model, start=start)(input_ids=tokens).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.exp().sum(-1), torch.ones(3, 12))


def test_greedy_generation_and_beams_do_not_change(make, name, tokens):
    model = make.plain(name)
    want, beams = greedy(model, tokens), greedy(model, tokens, num_beams=3, max_new_tokens=8)
    model = highrank.upgrade(model)
    assert torch.equal(greedy(model, tokens), want)
    assert torch.equal(greedy(model, tokens, num_beams=3, max_new_tokens=8), beams)


def test_a_saved_model_is_loaded_as_it_was(make, name, tokens, tmp_path):
    model = make.trained(name)
    want = log_probs(model, tokens)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(log_probs(loaded, tokens), want)


def test_tied_weights_stay_tied(make, name, tmp_path):
    model = make.plain(name)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert is_tied == (name in ("gpt2", "gemma2", "opt", "cohere"))
    model = highrank.upgrade(model)
    model.save_pretrained(tmp_path)
    for found in (model, AutoModelForCausalLM.from_pretrained(tmp_path)):
        found.resize_token_embeddings(64)
        weight = found.get_output_embeddings().head.weight
        assert (found.get_input_embeddings().weight is weight) == is_tied


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
    for return_logits in (True, False):
        model.zero_grad()
        output = model(input_ids=tokens, labels=tokens, return_logits=return_logits)
        assert ("logits" in output) == return_logits
        output.loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters()})
        found[-1]["loss"] = output.loss.detach()
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_the_plain_class_refuses_the_folder(make, name, tmp_path):
    plain = type(make.plain(name))
    make.upgraded(name).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"call highrank.register\(\) and load it with Auto"):
        plain.from_pretrained(tmp_path)
