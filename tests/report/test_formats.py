import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from highrank.report.formats import (
    MAX_CONTEXT,
    MAX_LENGTH,
    count,
    duration,
    legible,
    legible_context,
    listed,
    make_table,
    mib,
    narrow,
    nats,
    power,
    printable,
    scientific,
    with_error,
)


@pytest.mark.parametrize(
    "token, source, shown",
    [
        ("house", "run", "house"),
        ("<unk>", "run", "<unk>"),
        ("Ġhouse", "huggingface", "␣house"),
        ("▁house", "huggingface", "␣house"),
        ("Ġhar", "run", "Ġhar"),
        ("ĊĊ", "huggingface", "⏎⏎"),
        ("\n\t", "run", "⏎\\t"),
        (" a b\u3000", "run", "␣a␣b␣"),
        ("a\u202eb\x00\ud800", "run", "a\\u202eb\\x00\\ud800"),
        ("\u0301", "run", "◌\u0301"),
        ("", "run", "(empty)"),
    ],
)
def test_strange_tokens_can_be_read(token, source, shown):
    assert legible(token, source) == shown


@settings(deadline=None)
@given(
    st.text(st.characters(), max_size=50), st.sampled_from(["run", "huggingface"]), st.booleans()
)
def test_any_token_stays_on_one_line_and_can_be_written(token, source, is_context):
    shown = legible_context(token) if is_context else legible(token, source)
    shown.encode("utf-8")
    assert all(unicodedata.category(sign)[0] != "C" for sign in shown)
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= (MAX_CONTEXT if is_context else MAX_LENGTH)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a\tb\nc é 😀 語", "a\tb\nc é 😀 語"),
        ("\x1b[2Jgone\r\x07", "\\x1b[2Jgone\\r\\x07"),
        ("\x9b2J\x85", "\\x9b2J\\x85"),
        ("evil\u202etxt.exe\u200b\ufeff", "evil\\u202etxt.exe\\u200b\\ufeff"),
        ("\u2028\ud800", "\\u2028\\ud800"),
    ],
)
def test_text_for_a_terminal_cannot_move_its_cursor(text, shown):
    assert printable(text) == shown


def test_of_a_long_context_the_end_is_shown():
    shown = legible_context("one\ntwo  " + "word " * 50 + "last")
    assert shown.startswith("…") and shown.endswith("word last")
    assert legible_context("one\ntwo  three") == "one ⏎ two three"


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (nats, 0.0, "0"),
        (nats, 0.398, "0.3980"),
        (nats, 0.00641, "0.0064"),
        (nats, 3.14e-7, "3.1e-7"),
        (duration, 81.4, "81 s"),
        (duration, 119.9, "2 min 0 s"),
        (listed, [1], "1"),
        (listed, [1, 2], "1 and 2"),
        (listed, "abc", "a, b and c"),
        (power, 1e-3, "10⁻³"),
        (power, 3e-12, "3·10⁻¹²"),
        (power, 2.1e-5, "3·10⁻⁵"),
        (power, 9.5e-7, "10⁻⁶"),
        (scientific, 1e-9, "10⁻⁹"),
        (scientific, 1.5e-6, "1.5·10⁻⁶"),
        (count, 1234.5, "1,235"),
        (count, None, "–"),
        (mib, 2800 * 2**20, "2,800"),
        (mib, None, "–"),
    ],
)
def test_numbers_are_short_and_never_rounded_to_nothing(form, value, text):
    assert form(value) == text


@pytest.mark.parametrize(
    "value, error, text",
    [
        (4.763, 0.0123, "4.763 ± 0.012"),
        (0.02491, 4e-5, "0.0249 ± 4e-5"),
        (1.04e-4, 9.7e-5, "0.0001 ± 0.0001"),
        (3e-5, 2e-7, "3.0e-5 ± 2e-7"),
        (4.763, None, "4.763"),
        (4.763, 0.0, "4.763"),
        (0.0, 0.0, "0"),
        (2e-7, 0.0, "2.0e-7"),
    ],
)
def test_an_error_is_never_written_as_zero(value, error, text):
    assert with_error(value, error).replace("\u00a0", " ") == text
    assert len(text) <= 16


def printed(table, width):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_where_space_is_short_text_is_folded_and_numbers_stay():
    table = make_table(("name",), ("tokens",))
    table.add_row("a-name-without-spaces", "1,234,567")
    text = printed(table, 20)
    assert "1,234,567" in text and "…" not in text
    assert "".join(line[:9].strip() for line in text.splitlines()[3:]) == "a-name-without-spaces"


def test_cells_beside_many_others_are_narrow():
    few = ["1.25 ± 0.10", "1.50\u00a0±\u00a00.10, better", "1,250"]
    assert narrow(few) == ["1.25 ± 0.10", "1.50\u00a0±\u00a00.10\nbetter", "1,250"]
    assert narrow([*few, "–"]) == ["1.25\n± 0.10", "1.50\n± 0.10\nbetter", "1,250", "–"]
