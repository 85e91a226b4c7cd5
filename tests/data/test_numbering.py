"""Numbers of pieces, many at once, are those of the tokenizers line by line."""

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from highrank.data.corpus import Recipe
from highrank.data.numbering import WIDE_SPACES, Pieces, numbering_of
from highrank.data.subwords import learn
from highrank.data.text import tokenized_lines

SPACES = "".join(map(chr, range(9, 14))) + "\x1c\x1d\x1e\x1f" + WIDE_SPACES
# Words of all widths that begin alike; signs, marks, wide characters; every kind of space.
WORDS = st.sampled_from(
    ["a", "a" * 8, "a" * 9, "a" * 16, "a" * 17, "a" * 32, "a" * 33, "a" * 40, "don't", "3,000.50"]
    + ["<eos>", "<unk>", "é" * 5, "e\u0301", "中文字", "😀😀😀", "...", '"No,"', "Σας", "\x01"]
)
TEXT = st.lists(st.one_of(WORDS, st.sampled_from(sorted(SPACES) + ["\n"] * 9), st.text(max_size=3)))


def recipe_of(tokenizer, lower=False):
    subwords = None
    if ":" in tokenizer:
        subwords = learn(tokenizer, ["aaaa don't 3,000.50 é 中文字", "No, said he."] * 9)
    return Recipe(tokenizer=tokenizer, split="none", lower=lower, subwords=subwords)


RECIPES = {
    name: recipe_of(name)
    for name in ("words", "whitespace", "characters", "bpe:300", "unigram:300")
}


def decoded(numbering, blocks):
    """The tokens of a text that is given in blocks."""
    numbers = np.concatenate([numbering.number(block) for block in blocks])
    tokens = numbering.tokens()
    return list(chain.from_iterable(tokens[number] for number in numbers.tolist()))


@pytest.mark.parametrize("name", RECIPES)
@given(pieces=TEXT, cut=st.integers(0, 50))
@example(pieces=[" ", "\n", "\n", "a"], cut=0)
def test_tokens_are_those_of_the_tokenizer_line_by_line(name, pieces, cut):
    text = "".join(pieces).replace("\0", "")
    want = chain.from_iterable(tokenized_lines(text, RECIPES[name]))
    text += "" if text.endswith("\n") or not text else "\n"
    # A block ends with a line.
    middle = text.find("\n", cut) + 1
    assert decoded(numbering_of(RECIPES[name]), [text[:middle], text[middle:]]) == list(want)


def test_numbers_are_given_in_the_order_of_appearance():
    text = "\n\nb a\nc" + "c" * 40 + " b a\n"
    for name, want in (
        ("words", ["b", "a", "<eos>", "c" * 41]),
        ("whitespace", ["<eos>", "b", "a", "c" * 41]),
    ):
        numbering = numbering_of(RECIPES[name])
        numbering.number(text)
        assert numbering.tokens() == [[token] for token in want]


def test_many_words_are_told_apart_while_the_tables_grow():
    generator = np.random.default_rng(0)
    # Half of them differ in the last of 8, 16 or 24 bytes only.
    words = [f"{'x' * (number % 4 * 8)}{number}" for number in range(40_000)]
    numbering = numbering_of(RECIPES["whitespace"])
    for _ in range(4):
        drawn = [words[place] for place in generator.integers(0, len(words), 30_000)]
        tokens = numbering.number(" ".join(drawn) + "\n")[:-1]
        names = numbering.tokens()
        assert [names[number][0] for number in tokens] == drawn


@pytest.mark.parametrize("largest", [5, 1 << 20])
def test_lists_of_pieces_get_numbers_in_the_order_of_their_first_appearance(largest, monkeypatch):
    monkeypatch.setattr("highrank.data.numbering.LARGEST_TABLE", largest)
    generator, pieces, known = random.Random(0), Pieces(), {}
    assert pieces.number_list(b"").tolist() == [] and pieces.in_order() == []
    for _ in range(20):
        words = ["é" * generator.randrange(1, 30) + generator.choice("abc\n") for _ in range(30)]
        found = pieces.number_list("\0".join(words).encode())
        assert found.tolist() == [known.setdefault(word, len(known)) for word in words]
    assert pieces.in_order() == list(known) and len(pieces) == len(known)
