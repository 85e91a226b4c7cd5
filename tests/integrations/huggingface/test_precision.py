"""Output layers that compute in another precision than the body."""

import copy

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

import highrank
from highrank.integrations.huggingface.output_layer import HeadOutputLayer
from highrank.ops import mixed_linear

pytestmark = pytest.mark.filterwarnings("ignore")
HALF = torch.bfloat16


@pytest.fixture(params=["llama", "gpt2", "gemma2", "cohere"])
def model(make, request):
    """A body in bfloat16 under a head in float32; untied, tied, with a softcap, with a scale."""
    model = make.trained(request.param)
    model.get_output_embeddings().precision = "float32"
    return model.to(HALF)


def exact_logits(model, tokens):
    """Those of the head's weights in float64, of the same hidden states."""
    layer = copy.deepcopy(model.get_output_embeddings()).double()
    layer.precision = None
    return layer(model.base_model(input_ids=tokens).last_hidden_state.double())


def test_log_probabilities_have_the_digits_of_float32(model, tokens):
    model.eval()
    found = model(input_ids=tokens).logits
    want = exact_logits(model, tokens)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", HALF):
        again = model.get_output_embeddings()(model.base_model(tokens).last_hidden_state)
    assert again.dtype == torch.float32
    model.get_output_embeddings().precision = None
    rounded = model(input_ids=tokens).logits
    assert (rounded - want).abs().max() > 100 * (found - want).abs().max()


@pytest.mark.parametrize("is_training", [False, True])
def test_the_loss_and_its_gradients_are_those_of_float32(model, tokens, is_training):
    model.train(is_training)
    loss = model(input_ids=tokens, labels=tokens).loss
    want = F.cross_entropy(exact_logits(model, tokens)[:, :-1].mT, tokens[:, 1:])
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert all(p.grad.dtype == HALF and p.grad.isfinite().all() for p in model.parameters())


def test_it_generates_and_scores(model, tokens):
    model.eval()
    found = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert found[0, 12] == exact_logits(model, tokens)[0, -1].argmax()
    model.generate(tokens, max_new_tokens=2, do_sample=True, pad_token_id=0)
    model.generate(tokens, max_new_tokens=2, num_beams=2, pad_token_id=0)


def test_a_saved_model_keeps_it(make, tokens, tmp_path):
    plain = make.plain("gpt2").to(HALF)
    model = highrank.upgrade(plain, head="mos+constant", precision="float32").eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().precision == "float32" and loaded.dtype == HALF
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    loaded.get_output_embeddings().precision = None
    loaded.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.get_output_embeddings().precision is None


def test_there_is_no_copy_of_the_embedding(make, tokens, watch, monkeypatch):
    model = highrank.upgrade(make.plain("gpt2").to(HALF), precision="float32").train()
    model.resize_token_embeddings(4000)
    monkeypatch.setattr(mixed_linear, "BLOCK_BYTES", 100 * 16 * 4)
    hidden = model.transformer(tokens[:1, :2]).last_hidden_state.detach()
    layer = model.get_output_embeddings().requires_grad_(False)
    for target in (None, tokens[:1, :2]):
        with watch() as seen:
            layer(hidden, target)
        assert max(seen.sizes) < 4000 * 16


def test_a_head_that_was_converted_alone_is_used_in_its_precision(make, tokens):
    model = make.trained("llama").to(HALF)
    model.lm_head.float()
    want = copy.deepcopy(model.lm_head)(model.model(tokens).last_hidden_state.float())
    torch.testing.assert_close(model.eval()(tokens).logits, want)
    model.generate(tokens, max_new_tokens=2, pad_token_id=0)
    model.train()(tokens, labels=tokens).loss.backward()
    assert model.lm_head.head.up.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["cohere", "granite"])
@pytest.mark.parametrize("block", [None, 1])
def test_log_probabilities_of_tokens_have_the_scale_of_the_model(make, tokens, name, block):
    model = make.trained(name).eval()
    hidden, ids = model.model(tokens).last_hidden_state[:, :-1], tokens[:, 1:].clone()
    log_p = model(tokens).logits[:, :-1].log_softmax(-1)
    want = log_p.gather(-1, ids[..., None])[..., 0]
    want[0, 2], ids[0, 2] = 0.0, -100
    layer = model.get_output_embeddings()
    assert layer.scale != 1
    torch.testing.assert_close(layer.per_token_log_probs(hidden, ids, block), want)


def test_what_cannot_be_more_precise_is_refused(make):
    with pytest.raises(ValueError, match="precision must be None or one of"):
        make.upgraded("llama", precision="float")
    with pytest.raises(ValueError, match="precision must be None for Mixtape"):
        make.upgraded("llama", head="mixtape", start="random", precision="float32")
    head = highrank.Softmax(4, 7)
    assert HeadOutputLayer(head, precision="float64")(torch.randn(2, 4)).dtype == torch.float64
