"""What transformers' own tests check of a model that generates, for upgraded models."""

import pytest
import torch


@torch.no_grad()
def logits(model, tokens, **options):
    return model(input_ids=tokens, **options).logits


@pytest.fixture(params=["llama", "gpt2", "gemma2"])
def model(make, request):
    return make.trained(request.param)


def test_the_cache_changes_nothing(model, tokens):
    options = {"max_new_tokens": 10, "do_sample": False}
    cached = model.generate(tokens[:, :4], use_cache=True, **options)
    assert torch.equal(cached, model.generate(tokens[:, :4], use_cache=False, **options))
    first = model(input_ids=tokens[:, :7])
    rest = logits(model, tokens[:, 7:], past_key_values=first.past_key_values)
    both = torch.cat([first.logits, rest], 1)
    torch.testing.assert_close(both, logits(model, tokens), rtol=0, atol=1e-5)


def test_padding_on_either_side_changes_nothing(model, tokens):
    want, short = logits(model, tokens), tokens.new_zeros(3, 2)
    mask, blank = torch.ones_like(tokens), torch.zeros_like(short)
    right = logits(model, torch.cat([tokens, short], 1), attention_mask=torch.cat([mask, blank], 1))
    torch.testing.assert_close(right[:, :12], want, rtol=0, atol=1e-5)
    places = torch.cat([blank, torch.arange(12).expand(3, 12)], 1)
    left = logits(
        model,
        torch.cat([short, tokens], 1),
        attention_mask=torch.cat([blank, mask], 1),
        position_ids=places,
    )
    torch.testing.assert_close(left[:, 2:], want, rtol=0, atol=1e-5)


def test_padded_texts_are_continued_as_they_are_alone(model, tokens):
    batch, mask = tokens[:2, :6].clone(), torch.ones(2, 6, dtype=torch.long)
    batch[0, :2], mask[0, :2] = 0, 0
    options = {"max_new_tokens": 8, "do_sample": False}
    found = model.generate(batch, attention_mask=mask, **options)[0, 6:]
    alone = model.generate(batch[:1, 2:], attention_mask=mask[:1, 2:], **options)[0, 4:]
    assert torch.equal(found, alone)


def test_embeddings_may_be_given_instead_of_tokens(model, tokens):
    given = model.get_input_embeddings()(tokens)
    found = model(inputs_embeds=given).logits
    torch.testing.assert_close(found, logits(model, tokens), rtol=0, atol=1e-5)


def test_only_the_wanted_positions_are_computed(model, tokens):
    want = logits(model, tokens)
    for kept, positions in ((1, slice(-1, None)), (3, slice(-3, None))):
        found = logits(model, tokens, logits_to_keep=kept)
        torch.testing.assert_close(found, want[:, positions], rtol=0, atol=1e-5)
    some = torch.tensor([2, 5])
    found = logits(model, tokens, logits_to_keep=some)
    torch.testing.assert_close(found, want[:, some], rtol=0, atol=1e-5)


def test_sampling_follows_the_mixture(model, tokens):
    """With the temperature that is asked for, on the mixture's probabilities."""
    torch.manual_seed(1)
    found = model.generate(
        tokens[:1, :4].expand(4000, 4), max_new_tokens=1, do_sample=True, temperature=2.0, top_k=0
    )
    want = (logits(model, tokens[:1, :4])[0, -1] / 2).softmax(-1)
    shares = torch.bincount(found[:, -1], minlength=60) / len(found)
    assert (shares - want).abs().max() < 6 * (0.25 / len(found)) ** 0.5


def test_an_assistant_changes_no_token(make, tokens):
    model, options = make.trained("llama"), {"max_new_tokens": 12, "do_sample": False}
    want = model.generate(tokens[:1, :4], **options)
    for assistant in (make.plain("llama"), make.upgraded("llama")):
        assert torch.equal(
            model.generate(tokens[:1, :4], assistant_model=assistant, **options), want
        )
    assert torch.equal(model.generate(tokens[:1, :4], prompt_lookup_num_tokens=2, **options), want)


def test_beams_find_the_likeliest_continuation(make, tokens):
    """With as many beams as there are tokens, of two tokens: all 60² are compared."""
    model = make.trained("llama")
    found = model.generate(tokens[:1, :4], num_beams=60, max_new_tokens=2, do_sample=False)
    first = logits(model, tokens[:1, :4])[0, -1]  # (V,)
    texts = torch.cat([tokens[:1, :4].expand(60, 4), torch.arange(60)[:, None]], 1)
    total = first[:, None] + logits(model, texts)[:, -1]  # (V, V)
    best = divmod(int(total.argmax()), 60)
    assert tuple(found[0, 4:].tolist()) == best
