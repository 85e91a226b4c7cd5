"""New text is read as the corpus was."""

from itertools import chain

import numpy as np
import pytest

from highrank.data.prepare import TextOptions, prepare_text
from highrank.data.text import check_known, read_lines
from highrank.data.vocabulary import Vocabulary


@pytest.mark.parametrize("level", ["word", "char"])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_the_text_of_a_corpus_gives_its_tokens(level, ending, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("train", "valid", "test"):
        lines = [f"It's {n} o'clock, DEAR {name}." if n % 5 else "" for n in range(40)]
        (folder / f"{name}.txt").write_text("\r\n".join(lines) + ending)
    options = TextOptions(level=level, lower=True, min_count=2)
    corpus = prepare_text(folder, options=options, cache=tmp_path / "cache").corpus
    lines = read_lines(folder / "valid.txt", corpus.header.recipe)
    found = corpus.vocabulary.encode(chain.from_iterable(lines))
    np.testing.assert_array_equal(found, corpus.split("valid"))
    assert lines[1][:2] == (["it's", "1"] if level == "word" else ["i", "t"])


def test_unknown_words_are_listed_once():
    vocabulary = Vocabulary(("<unk>", "<eos>", "the", "cat"))
    words = ["the", "axolotl", "cat", "<eos>", "axolotl", "newt"]
    assert check_known(words, vocabulary, "the prompt") == ["axolotl", "newt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["axolotl", "<unk>", "newt", "<eos>"], "the text must have a word .*, got axolotl newt"),
        (["<eos>"], "the text must have a word of the run's vocabulary, got no word at all"),
        ([str(n) for n in range(99)], "got 0 1 2 3 4 5 6 7 …"),
    ],
)
def test_a_text_with_no_known_word_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        check_known(words, Vocabulary(("<unk>", "<eos>", "the")), "the text")


def test_an_unknown_word_is_refused_where_there_is_no_unk():
    with pytest.raises(ValueError, match="which has no <unk>, got 'newt'"):
        check_known(["the", "newt"], Vocabulary(("<eos>", "the")), "the text")


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="the text must be a file, got"):
        read_lines(tmp_path, None)
