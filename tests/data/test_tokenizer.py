"""Lines to tokens, and back."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.data import readable, tokenizer
from highrank.data.tokenizer import TOKENIZERS, characters, unit_of, whitespace, words

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n"))
# Text that is rich in what the word tokenizer must decide about.
SIGNS = st.text(st.sampled_from("ab1 ’'-.,;\"“”()$%<>unk é́"))


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ('"No," he didn\'t say.', ['"', "No", ",", '"', "he", "didn't", "say", "."]),
        ("well-known 21st -- no... way", ["well-known", "21st", "--", "no", "...", "way"]),
        ("$3,000.50, 1.5% of it", ["$", "3,000.50", ",", "1.5", "%", "of", "it"]),
        ("Mr. <unk> isn’t __eou__", ["Mr", ".", "<unk>", "isn’t", "__eou__"]),
        ("'tis rock 'n' roll", ["'", "tis", "rock", "'", "n", "'", "roll"]),
        (unicodedata.normalize("NFD", "été हिन्दी"), ["e\u0301te\u0301", "हिन्दी"]),
    ],
)
def test_words_numbers_and_signs_are_tokens(line, tokens):
    assert words(line) == [*tokens, "<eos>"]


@given(LINE | SIGNS)
def test_no_tokenizer_loses_anything_but_spaces(line):
    for tokenize in (words, whitespace):
        assert "".join(tokenize(line)).removesuffix("<eos>") == "".join(line.split())
    assert "".join(characters(line)) == line + "<eos>"


@given(SIGNS | LINE)
def test_readable_text_has_the_same_tokens(line):
    tokens = words(line)
    assert words(readable(tokens).removesuffix("\n")) == tokens
    spoken = '"No," he said (at 5%): well-known.'
    assert readable(words(spoken)) == spoken + "\n"


@given(st.lists(LINE))
def test_characters_become_the_same_text_again(lines):
    tokens = [token for line in lines for token in characters(line)]
    assert readable(tokens, "char") == "".join(line + "\n" for line in lines)


@pytest.mark.parametrize(
    ("name", "tokens"), [("words", []), ("whitespace", ["<eos>"]), ("characters", [" ", "<eos>"])]
)
def test_only_the_word_tokenizer_drops_blank_lines(name, tokens):
    assert TOKENIZERS[name](" ") == tokens


def test_tokens_of_an_unknown_tokenizer_are_called_tokens():
    assert {name: unit_of(name) for name in (*TOKENIZERS, "bpe")} == {
        "words": "word",
        "whitespace": "word",
        "characters": "character",
        "bpe": "token",
    }


def test_long_pieces_are_not_remembered():
    before = tokenizer._known_pieces.cache_info()
    words("x" * 65 + " " + "y" * 64)
    after = tokenizer._known_pieces.cache_info()
    assert after.misses == before.misses + 1 and after.maxsize is not None
