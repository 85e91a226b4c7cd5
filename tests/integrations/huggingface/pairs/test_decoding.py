"""Targets in batches: whatever stands beside a source changes nothing."""

import random

import pytest
import torch

from highrank.integrations.huggingface.pairs import decoding
from highrank.integrations.huggingface.pairs.components import (
    has_components,
    responsibilities,
    word_components,
)
from highrank.integrations.huggingface.pairs.decoding import Beams, decode

BEAMS = Beams(num_beams=3, num_best=2)


def test_batches_shuffled_or_not_are_one_by_one(model, encoder, sources, monkeypatch):
    sources = sources[:8]
    together = decode(model, encoder, sources, BEAMS)
    alone = [decode(model, encoder, [source], BEAMS)[0] for source in sources]
    order = random.Random(1).sample(range(len(sources)), len(sources))
    shuffled = decode(model, encoder, [sources[i] for i in order], BEAMS)
    monkeypatch.setattr(decoding, "BATCH_TOKENS", 60)
    in_parts = decode(model, encoder, sources, BEAMS)
    for i, place in enumerate(order):
        assert together[place] == alone[place] == shuffled[i] == in_parts[place]


def test_log_probabilities_are_those_of_the_model(model, encoder, tokenizer):
    found = decode(model, encoder, ["eins zwei rot", "blau"], BEAMS, with_scores=True)
    for source, some in zip(["eins zwei rot", "blau"], found, strict=True):
        for one in some:
            inputs = tokenizer([source], return_tensors="pt")
            labels = torch.tensor([one.ids])
            with torch.no_grad():
                loss = model(**inputs, labels=labels).loss
            assert one.log_prob == pytest.approx(-loss.item() * len(one.ids), abs=1e-4)
        # The first is the best by log-probability over length.
        ranks = [one.log_prob / len(one.ids) for one in some]
        assert ranks == sorted(ranks, reverse=True)


def test_words_are_limited_and_nothing_is_nothing(model, encoder):
    found = decode(model, encoder, ["eins"], Beams(num_beams=2, max_words=2))
    assert len(found[0][0].text.split()) <= 2
    assert decode(model, encoder, [], BEAMS) == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_beams": 0}, "beam must be at least 1, got 0"),
        ({"num_best": 6}, "best must be at most the beams, got 6 of 5"),
        ({"temperature": -1.0}, "temperature must be finite and at least 0"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Beams(**options)


def test_every_word_has_the_component_that_answers_for_it(model, encoder, tokenizer):
    assert has_components(model)
    ids = tokenizer("red  house")["input_ids"]
    shares = responsibilities(model, encoder, "rot Haus", ids)
    torch.testing.assert_close(shares.sum(-1), torch.ones(len(ids)))
    found = word_components(model, encoder, "rot Haus", ids)
    assert [word for word, _ in found] == ["red", "house"]
    # No more than the model's positions are read.
    torch.testing.assert_close(
        responsibilities(model, encoder, "rot " * 900, ids),
        responsibilities(model, encoder, "rot " * 1100, ids),
    )
    assert all(0 <= component < 3 for _, component in found)
