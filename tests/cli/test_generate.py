"""`highrank generate` as a user meets it."""

import json
import re

import pytest

from highrank.generation import generate
from highrank.integrations.huggingface import reader
from highrank.run.loading import load


def test_it_writes_what_the_function_writes_after_the_prompt(highrank, trained):
    code, printed, errors = highrank(
        "generate", "tiny", "--prompt", "the old cat", "--num-tokens", 8
    )
    model, vocabulary = load(trained / "tiny")
    (sample,) = generate(model, vocabulary, ["the", "old", "cat"], num_tokens=8)
    assert code == 0 and errors == ""
    words = re.sub(r"\n(?=.)", " <eos> ", printed.strip("\n")).split()
    while sample[-1] == "<eos>":
        sample.pop()
    assert words == ["the", "old", "cat", *sample]


def test_several_samples_are_numbered_and_temperature_0_makes_them_equal(highrank):
    arguments = ("generate", "tiny", "--num-samples", 3, "--num-tokens", 5)
    samples = re.split(r"--- \d\n", highrank(*arguments)[1])[1:]
    assert len(samples) == 3 and len(set(samples)) > 1
    samples = re.split(r"--- \d\n", highrank(*arguments, "--temperature", 0)[1])[1:]
    assert len(samples) == 3 and len(set(samples)) == 1


def test_unknown_tokens_of_the_prompt_are_reported_apart_from_the_text(highrank):
    code, printed, errors = highrank("generate", "tiny", "--prompt", "the axolotl saw a newt")
    assert code == 0 and printed.startswith("the axolotl saw a newt")
    assert errors == "Not in the vocabulary, read as <unk>: axolotl, newt\n"


def test_json_has_text_tokens_components_and_unknown_tokens(highrank):
    options = ("--num-samples", 2, "--num-tokens", 6, "--show-components", "--json", "--top-k", 4)
    code, printed, _ = highrank("generate", "tiny", "--prompt", "the newt", *options)
    found = json.loads(printed)
    assert code == 0 and found["unknown"] == ["newt"] and found["prompt"] == ["the", "newt"]
    for sample in found["samples"]:
        assert len(sample["tokens"]) == len(sample["components"]) == 6
        assert sample["text"].startswith("the newt") and set(sample["components"]) <= {1, 2, 3}


def test_without_colours_the_component_s_number_follows_the_word(highrank):
    plain = highrank("generate", "tiny", "--num-tokens", 30)[1]
    code, printed, _ = highrank("generate", "tiny", "--num-tokens", 30, "--show-components")
    assert code == 0 and re.sub(r"/[123]\b", "", printed) == plain != printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-p", "1.2"], "top_p must be above 0 and at most 1, got 1.2"),
        (["--device", "abacus"], "device must be one that torch has here, got "),
        (["--prompt", "newt axolotl"], "the prompt must have a token of the run's vocabulary, got"),
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


def test_a_prompt_is_utf_8_in_any_locale(highrank):
    prompt = "the \u00e9l\u00e9phant".encode().decode("ascii", "surrogateescape")
    code, printed, _ = highrank("generate", "tiny", "--prompt", prompt, "--json", "--threads", 1)
    assert code == 0 and json.loads(printed)["unknown"] == ["\u00e9l\u00e9phant"]


def test_a_name_that_is_not_here_is_looked_up_on_the_hub(highrank, monkeypatch):
    def answer(name):
        raise reader.HubError("the Hugging Face hub has no model of this name")

    monkeypatch.setattr(reader, "hub_answers", answer)
    message = "highrank: there is no such run here, and the Hugging Face hub has no model"
    assert highrank("generate", "org/model")[2].startswith(message)
    monkeypatch.setattr(reader, "hub_answers", lambda name: pytest.fail(name))
    assert "did you mean tiny?" in highrank("generate", "tinny")[2]
