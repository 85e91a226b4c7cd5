"""Perplexity and text of Hugging Face models against transformers' own loss and generation."""

import math

import pytest
import torch

from highrank.generation import Sampling
from highrank.integrations.huggingface.evaluation import evaluate_text, text_windows
from highrank.integrations.huggingface.generation import generate_text
from highrank.integrations.huggingface.reader import HuggingFaceModel

WORDS = " ".join(f"w{i * i % 30}" for i in range(50))


@pytest.fixture(params=["plain", "trained", "with a first token"])
def model(request, make, tmp_path):
    (make.trained if request.param == "trained" else make.plain)("llama").save_pretrained(tmp_path)
    make.tokenizer(tmp_path, with_start=request.param == "with a first token")
    return HuggingFaceModel(str(tmp_path))


def windowed_loss(model, context, stride):
    """The loop of transformers' documentation, with labels of -100 where a token has counted."""
    loaded, prefix = model.load().model, torch.tensor([model.prefix], dtype=torch.long)
    tokens, total, done = torch.tensor([model.encode(WORDS)]), 0.0, 1
    while done < tokens.shape[1]:
        end = min(tokens.shape[1], context + 1 if done == 1 else done + stride)
        start = max(0, end - 1 - context)
        labels = tokens[:, start:end].clone()
        labels[:, : done - start] = -100
        read = torch.cat([prefix, tokens[:, start:end]], 1)
        labels = torch.cat([torch.full_like(prefix, -100), labels], 1)
        total += loaded(input_ids=read, labels=labels).loss.item() * (end - done)
        done = end
    return total / (tokens.shape[1] - 1)


@pytest.mark.parametrize(("context", "stride"), [(80, 40), (16, 4), (7, 7)])
def test_the_loss_is_that_of_transformers(model, context, stride, tmp_path):
    (tmp_path / "words.txt").write_text(WORDS)
    found = evaluate_text(model, tmp_path / "words.txt", context=context, stride=stride)
    assert found.nats == pytest.approx(windowed_loss(model, context, stride), rel=1e-5)
    assert found.num_tokens == 49 and found.settings == {"context": context, "stride": stride}
    assert found.bits_per_byte == pytest.approx(found.nats / math.log(2) * 50 / len(WORDS))


def test_every_token_but_the_first_is_predicted_once():
    found = list(text_windows(100, 16, 5))
    assert [i for _, first, end in found for i in range(first, end)] == list(range(1, 100))
    assert max(end - 1 - start for start, _, end in found) == 16
    assert min(first - start for start, first, _ in found[1:]) == 12


def test_a_sample_at_temperature_0_is_transformers_own(model):
    (sample,) = generate_text(model, "w3 w4", Sampling(temperature=0.0), num_tokens=5)
    ids = torch.tensor([model.prefix + model.encode("w3 w4")])
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    want = model.load().model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert sample.tokens == [model.token(int(i)) for i in want[0, ids.shape[1] :]]
    assert sample.text.startswith("w3 w4")


def test_mistakes_are_named(model, tmp_path):
    (tmp_path / "one.txt").write_text("w1")
    for options, message in (
        ({"context": 999}, "context must be at most 9[56] for"),
        ({"context": 8, "stride": 9}, "stride must be between 1 and the context, 8, got 9"),
        ({}, "the text must have at least 2 tokens, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_text(model, tmp_path / "one.txt", **options)
    with pytest.raises(ValueError, match="num-tokens must be at most"):
        generate_text(model, "w1", Sampling(), num_tokens=96)
