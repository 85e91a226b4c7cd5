"""Subwords: nothing of a text is lost, whatever it is, and ids agree with `tokenizers`."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.data import subwords
from highrank.data.subwords import check_name, learn, make_backend, text_of
from highrank.data.tokenizer import readable

pytest.importorskip("tokenizers")
LINES = ["the cat sat on the mat", "the dog's 3,000 mats – naïve <eos>", "", "  the end"] * 5
LEARNED = {name: learn(name, LINES) for name in ("bpe:290", "unigram:280")}

by_name = pytest.mark.parametrize("name", LEARNED)


@by_name
@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_nothing_of_a_text_is_lost(name, text):
    tokenize = subwords.tokenizer(LEARNED[name])
    tokens = [token for line in text.split("\n") for token in tokenize(line)]
    assert set(tokens) <= set(LEARNED[name].vocabulary)
    expected = text.encode(errors="surrogatepass").decode(errors="ignore") + "\n"
    assert readable(tokens, "subword") == expected


@by_name
def test_a_newline_is_the_end_of_a_line_and_the_ids_are_those_of_the_library(name):
    learned, text = LEARNED[name], "the cat\n  <eos> the mat\n"
    tokenize = subwords.tokenizer(learned)
    tokens = [token for line in text.removesuffix("\n").split("\n") for token in tokenize(line)]
    ids = [learned.vocabulary.index(token) for token in tokens]
    assert make_backend(learned).encode(text).ids == ids
    assert tokens.count("<eos>") == 2


def test_frequent_words_are_one_token_and_bytes_without_a_character_are_left_out():
    assert subwords.tokenizer(LEARNED["bpe:290"])("the") == ["the", "<eos>"]
    assert text_of(["a", "Ã"]) == "a" and text_of(["Ã", "¯"]) == "ï"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bpe", "must be bpe:N or unigram:N, such as bpe:4000, got 'bpe'"),
        ("bpe:12", "must have at least 260 tokens, got 'bpe:12'"),
        ("wordpiece:4000", "must be bpe:N or unigram:N"),
    ],
)
def test_impossible_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        check_name(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ("a", "b")}, "tokens must have every byte"),
        ({"tokens": (*LEARNED["bpe:290"].tokens, "a b")}, "tokens must be signs of bytes"),
        ({"merges": ("a z",)}, "merges must be pairs of tokens that make a token"),
        ({"scores": (1.0,)}, "scores must be one for each token"),
    ],
)
def test_damaged_subwords_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(LEARNED["bpe:290"], **changes)
