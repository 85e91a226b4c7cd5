"""Tokens and ids."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.data import Vocabulary

TOKENS = st.lists(st.text(), min_size=1, unique=True)


@given(TOKENS)
def test_decoding_undoes_encoding(tokens):
    vocabulary = Vocabulary(tokens)
    assert vocabulary.decode(vocabulary.encode(tokens)) == tokens
    assert vocabulary.encode(tokens).tolist() == list(range(len(tokens)))


@given(TOKENS)
def test_a_saved_vocabulary_is_the_same_again(tmp_path_factory, tokens):
    vocabulary, path = Vocabulary(tokens), tmp_path_factory.mktemp("saved") / "vocabulary.json"
    vocabulary.save(path)
    again = Vocabulary.load(path)
    assert again == vocabulary and again.sha256 == vocabulary.sha256
    turned = Vocabulary(tokens[::-1])
    assert (turned.sha256 == vocabulary.sha256) == (len(tokens) == 1)


def test_unknown_tokens_become_unk():
    vocabulary = Vocabulary(("a", "<unk>", "b"))
    assert vocabulary.encode(["b", "c", "a", "<unk>"]).tolist() == [2, 1, 0, 1]
    assert vocabulary.unk == 1 and vocabulary.eos is None
    with pytest.raises(ValueError, match="which has no <unk>, got 'c'"):
        Vocabulary(("a", "<eos>")).encode(["a", "c"])


@pytest.mark.parametrize("place", [-1, 2])
def test_an_id_out_of_range_is_an_error(place):
    with pytest.raises(ValueError, match=f"from 0 to 1, got {place}"):
        Vocabulary(("a", "b")).decode(np.array([0, place]))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("a", "b", "a"), "got 'a' twice"),
        ((), "at least one token"),
        (("a", 3), "must be a string, got 3"),
    ],
)
def test_bad_tokens_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(tokens)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must be an object, got \\[\\]"),
        ("{", "Expecting"),
        (json.dumps({"format": "highrank vocabulary", "version": 2}), "version 1, got .* and 2"),
        (json.dumps({"format": "highrank vocabulary", "version": 1}), "list of words"),
    ],
)
def test_a_foreign_file_is_an_error_with_its_path(content, message, tmp_path):
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        Vocabulary.load(path)
    assert str(path) in str(error.value)


def test_it_cannot_be_changed_and_prints_short():
    vocabulary = Vocabulary(["a"] + [str(number) for number in range(1000)])
    with pytest.raises(AttributeError):
        vocabulary.tokens = ()
    assert "1001 tokens" in repr(vocabulary) and len(repr(vocabulary)) < 80
    assert "a" in vocabulary and "b" not in vocabulary
