"""Text on the terminal: readable, coloured by component, or with its number."""

import io
import re

import pytest
from rich.console import Console

from highrank.cli.samples import Printer, has_colors, print_samples
from highrank.generation import Sampling, stream
from highrank.run.loading import load


def written(tokens, level="word", **console):
    """With components 1, 2, 1, 2, …"""
    file = io.StringIO()
    printer = Printer(Console(file=file, **console), level)
    for index, token in enumerate(tokens):
        printer.print(token, index % 2)
    printer.end()
    return file.getvalue()


SPEECH = ["no", ",", "<eos>", '"', "yes", '"', "!"]
TERMINAL = {"force_terminal": True, "color_system": "standard"}


def test_text_is_readable_and_in_colours():
    text = written(SPEECH, **TERMINAL, no_color=False)
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == 'no,\n"yes"!\n'
    assert text.startswith("\x1b[31mno\x1b[0m\x1b[32m,\x1b[0m")


@pytest.mark.parametrize("console", [{}, TERMINAL | {"no_color": True}], ids=["file", "NO_COLOR"])
def test_without_colours_tokens_stand_apart_each_with_its_number(console):
    text = written(SPEECH, **console)
    assert text == 'no/1 ,/2\n"/2 yes/1 "/2 !/1\n'
    pairs = [item.rsplit("/", 1) for item in text.split()]
    assert [word for word, _ in pairs] == [word for word in SPEECH if word != "<eos>"]
    assert written("a /1", level="char", **console) == "a/1 ␣/2 //1 1/2\n"


def test_subwords_show_the_space_before_a_word():
    tokens = ["no", "Ġ__", "eou", "Ġ", "Ã", "<eos>", "Ġyes"]
    assert written(tokens, "subword") == "no/1 ␣__/2 eou/1 ␣/2 Ã/1\n␣yes/1\n"
    text = written(tokens, "subword", **TERMINAL, no_color=False)
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == "no __eou \n yes\n"


HOSTILE = ["no", "\x1b[2J", "\x9bH", "a\rb", "\u202e", "\u200b", "<eos>", "yes"]


@pytest.mark.parametrize("level", ["word", "char"])
@pytest.mark.parametrize("console", [{}, TERMINAL | {"no_color": True}], ids=["file", "NO_COLOR"])
def test_tokens_cannot_move_the_cursor_of_a_terminal(level, console):
    text = written(HOSTILE, level, **console)
    assert not set(text) & set("\x1b\x9b\r\u202e\u200b")
    assert "\\x1b[2J" in text and text.count("\n") == 2
    assert written(["\x1b[2J"], **TERMINAL, no_color=False) == "\x1b[31m\\x1b[2J\x1b[0m\n"


def test_no_color_in_the_environment_is_seen(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colors(Console(**TERMINAL)) and not has_colors(Console(file=io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colors(Console(**TERMINAL))


def test_samples_are_printed_alike_wherever_they_come_from(highrank, trained):
    printed = highrank(
        "generate", "tiny", "--num-samples", 2, "--num-tokens", 12, "--prompt", "the"
    )[1]
    model, vocabulary = load(trained / "tiny")
    steps = stream(model, vocabulary, ["the"], Sampling(), num_tokens=12, num_samples=2)
    file = io.StringIO()
    print_samples(Console(file=file), "word", steps, 2, ["the"])
    assert file.getvalue() == printed and printed.startswith("--- 1\nthe ")
