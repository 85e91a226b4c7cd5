"""What an audit prints, and sentences that follow the numbers."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from highrank.studies.audit.table import (
    ROWS,
    audit_table,
    comparison,
    mixture_verdict,
    short_names,
    unargmaxable_verdict,
)


def printed(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(audit_table(result))
    return console.file.getvalue().replace("\u00a0", " ")


def test_the_terminal_shows_what_is_approved(result, make, approve):
    approve("terminal.txt", printed(result))
    approve("terminal-with-holes.txt", printed(make.with_holes()))


@pytest.mark.parametrize("count", [1, 5])
def test_every_model_is_shown_in_80_columns(count, make):
    models = [replace(make.mos(), name=f"some/where/model-{n}-{'x' * 40}{n}") for n in range(count)]
    text = printed(make.result(make.softmax(), *models))
    assert max(map(len, text.splitlines())) <= 80
    tables = text[text.index("head ") :]
    assert tables.count(" 797 ") == count and tables.count("4.763 ± 0.012") == count + 1


def test_every_row_has_a_definition_or_a_plain_label():
    plain = {"head", "tokens, V", "context, d", "components, K", "undecided", "dead"}
    defined = {row.label for row in ROWS if row.definition}
    assert {row.label for row in ROWS} - defined == plain


@pytest.mark.parametrize("name", ["my softmax", "[b]x"])
def test_names_are_shown_as_they_are(make, name):
    assert name in printed(make.result(replace(make.softmax(), name=f"runs/{name}")))


def test_several_texts_are_named_with_their_models(make):
    softmax, mos = make.softmax(), make.mos()
    other = replace(mos, text=replace(mos.text, name="my\x1b.txt"))
    text = printed(make.result(softmax, other))
    assert "\nText of softmax-0: penn-treebank/test.\nText of mos-0: my" in text
    assert "\x1b" not in text


def test_names_are_short_and_tell_models_apart():
    named = [SimpleNamespace(name=n) for n in ("a/x", "b/y/", "c/y", "c/y", "org/" + "long" * 20)]
    assert short_names([SimpleNamespace(name="runs/_old")]) == ("…/_old",)
    assert short_names(named) == ("x", "b/y/", "c/y", "c/y (2)", "longlonglon…longlonglong")


@pytest.mark.parametrize(
    "counts, words",
    [
        ((0, 0, 0), "Every token can be the most likely one."),
        ((1, 0, 0), "1 token can never be the most likely one (0.10% of all)."),
        (
            (25, 3, 0),
            "25 tokens can never be the most likely one (at least 2.50% of all); "
            "too close to call: 3.",
        ),
        (
            (0, 0, 900),
            "No token was found that can never be the most likely one; left for lack of time: 900.",
        ),
    ],
)
def test_unargmaxable_tokens_are_counted_and_gaps_admitted(counts, words):
    names = ("num_unargmaxable", "num_undecided", "num_untried")
    facts = SimpleNamespace(**dict(zip(names, counts, strict=True)))
    model = SimpleNamespace(unargmaxable=facts, head=SimpleNamespace(vocab_size=1000))
    assert words in unargmaxable_verdict(model)


def test_the_state_of_a_mixture_and_its_dead_components_are_named(make):
    report = make.mixture_report
    healthy = mixture_verdict(report(0.4, 0.3, 0.3))
    assert healthy.startswith("The components have specialised: ") and "Dead" not in healthy
    dead = mixture_verdict(report(0.001, 0.998, 0.001))
    assert "Dead, with hardly any weight: 1 and 3 of 3." in dead
    for numbers in ({"specialisation": 1e-4}, {"gate_information": 1e-4}):
        assert "The components have collapsed" in mixture_verdict(report(0.5, 0.5, **numbers))


def test_perplexities_are_compared_on_the_same_text_only(make):
    one, two = make.softmax(), make.mos()
    assert comparison(("a",), (one,)) == ""
    other = replace(two, text=replace(two.text, tokens_sha256="0"))
    assert "perplexities cannot be compared" in comparison(("a", "b"), (one, other))
