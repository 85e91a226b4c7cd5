import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.report.formats import MAX_CONTEXT, MAX_LENGTH, legible, legible_context, mib, ratio


@pytest.mark.parametrize(
    "word, source, shown",
    [
        ("house", "run", "house"),
        ("<unk>", "run", "<unk>"),
        ("Ġhouse", "Hugging Face", "␣house"),
        ("▁house", "Hugging Face", "␣house"),
        ("Ġhar", "run", "Ġhar"),
        ("ĊĊ", "Hugging Face", "⏎⏎"),
        ("\n\t", "run", "⏎\\t"),
        (" a b\u3000", "run", "␣a␣b␣"),
        ("a\u202eb\x00\ud800", "run", "a\\u202eb\\x00\\ud800"),
        ("\u0301", "run", "◌\u0301"),
        ("", "run", "(empty)"),
    ],
)
def test_strange_words_can_be_read(word, source, shown):
    assert legible(word, source) == shown


@settings(deadline=None)
@given(
    st.text(st.characters(), max_size=50), st.sampled_from(["run", "Hugging Face"]), st.booleans()
)
def test_any_word_stays_on_one_line_and_can_be_written(word, source, is_context):
    shown = legible_context(word) if is_context else legible(word, source)
    shown.encode("utf-8")
    assert all(unicodedata.category(sign)[0] != "C" for sign in shown)
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= (MAX_CONTEXT if is_context else MAX_LENGTH)


def test_of_a_long_context_the_end_is_shown():
    shown = legible_context("one\ntwo  " + "word " * 50 + "last")
    assert shown.startswith("…") and shown.endswith("word last")
    assert legible_context("one\ntwo  three") == "one ⏎ two three"


def test_ratios_and_memory_are_short_and_a_dash_where_they_are_unknown():
    assert (ratio(1.2345), ratio(None)) == ("1.23", "–")
    assert (mib(2800 * 2**20), mib(None)) == ("2,800", "–")
