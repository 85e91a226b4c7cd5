"""What an audit prints, and sentences that follow the numbers."""

import io
from dataclasses import replace
from types import SimpleNamespace

from rich.console import Console

from highrank.studies.audit.table import (
    ROWS,
    audit_table,
    comparison,
    mixture_verdict,
    short_names,
    unargmaxable_verdict,
)


def test_the_terminal_shows_what_is_approved(result, make, approve):
    approve("terminal.txt", audit_table(result))
    approve("terminal-with-holes.txt", audit_table(make.with_holes()))


def test_every_model_is_shown_in_80_columns_with_its_name_and_text(make):
    models = [replace(make.mos(), name=f"some/where/model-{n}-{'x' * 40}{n}") for n in range(5)]
    other = replace(make.softmax(), name="runs/[b]my softmax")
    other = replace(other, text=replace(other.text, name="my\x1b.txt"))
    console = Console(width=80, file=io.StringIO())
    console.print(audit_table(make.result(other, *models)))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("4.763\u00a0±\u00a00.012") == 6
    assert "\nText of [b]my softmax: my" in text and "\x1b" not in text


def test_every_row_has_a_definition_or_a_plain_label():
    plain = {"head", "tokens, V", "context, d", "components, K", "undecided", "dead"}
    defined = {row.label for row in ROWS if row.definition}
    assert {row.label for row in ROWS} - defined == plain


def test_names_are_short_and_tell_models_apart():
    named = [SimpleNamespace(name=n) for n in ("a/x", "b/y/", "c/y", "c/y", "org/" + "long" * 20)]
    assert short_names([SimpleNamespace(name="runs/_old")]) == ("…/_old",)
    assert short_names(named) == ("x", "b/y/", "c/y", "c/y (2)", "longlonglon…longlonglong")


def test_sentences_on_tokens_and_mixtures_read_as_approved(make, approve):
    names, lines = ("num_unargmaxable", "num_undecided", "num_untried"), []
    for counts in ((0, 0, 0), (1, 0, 0), (25, 3, 0), (0, 0, 900)):
        facts = SimpleNamespace(**dict(zip(names, counts, strict=True)))
        model = SimpleNamespace(unargmaxable=facts, head=SimpleNamespace(vocab_size=1000))
        lines.append(f"{counts}: {unargmaxable_verdict(model)}")
    for weights, numbers in (
        ((0.4, 0.3, 0.3), {}),
        ((0.001, 0.998, 0.001), {}),
        ((0.5, 0.5), {"specialisation": 1e-4}),
        ((0.5, 0.5), {"gate_information": 1e-4}),
    ):
        lines.append(mixture_verdict(make.mixture_report(*weights, **numbers)))
    approve("sentences.txt", "\n".join(lines))


def test_perplexities_are_compared_on_the_same_text_only(make):
    one, two = make.softmax(), make.mos()
    assert comparison(("a",), (one,)) == "" and "88.12" in comparison(("a", "b"), (one, two))
    other = replace(two, text=replace(two.text, tokens_sha256="0"))
    assert "88.12" not in comparison(("a", "b"), (one, other))
