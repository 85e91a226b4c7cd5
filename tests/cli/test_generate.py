"""`highrank generate` as a user meets it."""

import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from highrank.cli.generate import _tokens as prompt_tokens
from highrank.cli.printer import Pen, has_colors, print_samples
from highrank.data.corpus import Recipe
from highrank.generation import Sampling, generate, stream
from highrank.run import load


def test_it_writes_what_the_function_writes_after_the_prompt(highrank, trained):
    code, printed, errors = highrank("generate", "tiny", "--prompt", "the old cat", "--words", 8)
    model, vocabulary = load(trained / "tiny")
    (sample,) = generate(model, vocabulary, ["the", "old", "cat"], num_words=8)
    assert code == 0 and errors == ""
    words = re.sub(r"\n(?=.)", " <eos> ", printed.strip("\n")).split()
    while sample[-1] == "<eos>":
        sample.pop()
    assert words == ["the", "old", "cat", *sample]


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "tokens"),
    [
        ("characters", "a\n ", ["a", "<eos>", " "]),
        ("characters", " ", [" "]),
        ("characters", "a\n", ["a", "<eos>"]),
        ("words", "the cat\n ", ["the", "cat", "<eos>"]),
        ("whitespace", "the\n ", ["the", "<eos>"]),
        ("whitespace", "the\n\n", ["the", "<eos>", "<eos>"]),
        ("words", "", []),
    ],
)
def test_a_prompt_ends_a_line_only_with_a_newline(tokenizer, prompt, tokens):
    header = SimpleNamespace(recipe=Recipe(tokenizer=tokenizer, split="any"))
    loaded = SimpleNamespace(corpus=SimpleNamespace(header=header))
    assert prompt_tokens(prompt, loaded) == tokens


def test_the_same_seed_writes_the_same_text(highrank):
    first, again, other = (highrank("generate", "tiny", "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other


def test_several_samples_are_numbered_and_temperature_0_makes_them_equal(highrank):
    arguments = ("generate", "tiny", "--samples", 3, "--words", 5)
    samples = re.split(r"--- \d\n", highrank(*arguments)[1])[1:]
    assert len(samples) == 3 and len(set(samples)) > 1
    samples = re.split(r"--- \d\n", highrank(*arguments, "--temperature", 0)[1])[1:]
    assert len(samples) == 3 and len(set(samples)) == 1


def test_unknown_words_of_the_prompt_are_reported_apart_from_the_text(highrank):
    code, printed, errors = highrank("generate", "tiny", "--prompt", "the axolotl saw a newt")
    assert code == 0 and printed.startswith("the axolotl saw a newt")
    assert errors == "Not in the vocabulary, read as <unk>: axolotl, newt\n"


def test_json_has_text_words_components_and_unknown_words(highrank):
    options = ("--samples", 2, "--words", 6, "--show-components", "--json", "--top-k", 4)
    code, printed, _ = highrank("generate", "tiny", "--prompt", "the newt", *options)
    found = json.loads(printed)
    assert code == 0 and found["unknown"] == ["newt"] and found["prompt"] == ["the", "newt"]
    for sample in found["samples"]:
        assert len(sample["words"]) == len(sample["components"]) == 6
        assert sample["text"].startswith("the newt") and set(sample["components"]) <= {1, 2, 3}


def test_without_colours_the_component_s_number_follows_the_word(highrank):
    plain = highrank("generate", "tiny", "--words", 30)[1]
    code, printed, _ = highrank("generate", "tiny", "--words", 30, "--show-components")
    assert code == 0 and re.sub(r"/[123]\b", "", printed) == plain != printed


def written(words, level="word", **console):
    """By a pen, with components 1, 2, 1, 2, …"""
    file = io.StringIO()
    pen = Pen(Console(file=file, **console), level)
    for index, word in enumerate(words):
        pen.write(word, index % 2)
    pen.end()
    return file.getvalue()


SPEECH = ["no", ",", "<eos>", '"', "yes", '"', "!"]
TERMINAL = {"force_terminal": True, "color_system": "standard"}


def test_a_pen_writes_readable_text_in_colours():
    text = written(SPEECH, **TERMINAL, no_color=False)
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == 'no,\n"yes"!\n'
    assert text.startswith("\x1b[31mno\x1b[0m\x1b[32m,\x1b[0m")


@pytest.mark.parametrize("console", [{}, TERMINAL | {"no_color": True}], ids=["file", "NO_COLOR"])
def test_without_colours_words_and_signs_stand_apart_each_with_its_number(console):
    text = written(SPEECH, **console)
    assert text == 'no/1 ,/2\n"/2 yes/1 "/2 !/1\n'
    pairs = [item.rsplit("/", 1) for item in text.split()]
    assert [word for word, _ in pairs] == [word for word in SPEECH if word != "<eos>"]
    assert written("a /1", level="char", **console) == "a/1 ␣/2 //1 1/2\n"


def test_no_color_in_the_environment_is_seen(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colors(Console(**TERMINAL)) and not has_colors(Console(file=io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colors(Console(**TERMINAL))


def test_samples_are_printed_alike_wherever_they_come_from(highrank, trained):
    printed = highrank("generate", "tiny", "--samples", 2, "--words", 12, "--prompt", "the")[1]
    model, vocabulary = load(trained / "tiny")
    steps = stream(model, vocabulary, ["the"], Sampling(), num_words=12, num_samples=2)
    file = io.StringIO()
    print_samples(Console(file=file), "word", steps, 2, ["the"])
    assert file.getvalue() == printed and printed.startswith("--- 1\nthe ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-p", "0"], "top_p must be above 0 and at most 1, got 0.0"),
        (["--top-p", "1.2"], "top_p must be above 0 and at most 1, got 1.2"),
        (["--top-k", "0"], "top_k must be at least 1, got 0"),
        (["--temperature", "-1"], "temperature must be finite and at least 0, got -1.0"),
        (["--words", "0"], "words must be at least 1, got 0"),
        (["--samples", "0"], "samples must be at least 1, got 0"),
        (["--device", "abacus"], "device must be one that torch has here, got "),
        (
            ["--prompt", "newt axolotl"],
            "the prompt must have a token of the run's vocabulary, got newt axolotl",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, message, highrank):
    code, printed, errors = highrank("generate", "tiny", *arguments)
    assert code == 2 and printed == ""
    assert errors.startswith(f"highrank: {message}") and errors.count("\n") == 1


def test_a_broken_run_is_one_line(highrank, broken_run):
    folder, message = broken_run
    code, printed, errors = highrank("generate", folder)
    assert code == 2 and printed == ""
    assert message in errors and errors.count("\n") == 1


def test_help_explains_every_option(highrank):
    code, printed, _ = highrank("generate", "--help")
    assert code == 0 and "RUN" in printed and "(default: None)" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    for option in ("prompt", "words", "samples", "temperature", "top-k", "top-p", "seed"):
        assert f"--{option}" in printed
