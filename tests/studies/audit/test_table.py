"""What an audit prints, its picture, and sentences that follow the numbers."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from highrank.analysis.rank import MEASURES
from highrank.studies.audit.page import audit_picture
from highrank.studies.audit.table import (
    LEGEND,
    OWN,
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


@pytest.mark.parametrize("count", [1, 5])
def test_the_terminal_shows_every_model_in_80_columns(count, make):
    models = [replace(make.mos(), name=f"some/where/model-{n}-{'x' * 40}{n}") for n in range(count)]
    text = printed(make.result(make.softmax(), *models))
    assert max(map(len, text.splitlines())) <= 80
    tables = text[text.index("head ") :]
    assert tables.count("797") == count and tables.count("4.763 ± 0.012") == count + 1
    assert "softmax-0" in text


def test_the_picture_is_1200_pixels_wide(result, tmp_path):
    path = tmp_path / "audit.png"
    audit_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 675)


def test_a_result_with_holes_can_be_shown(make, tmp_path):
    result = make.with_holes()
    assert "1.000" in printed(result)
    audit_picture(result, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").exists()


def test_a_space_in_a_name_is_a_space(make):
    assert "my softmax" in printed(make.result(replace(make.softmax(), name="runs/my softmax")))


def test_names_are_no_markup(make):
    assert "[b]x" in printed(make.result(replace(make.softmax(), name="[b]x")))


def test_tokens_for_which_there_was_no_time_are_undecided(make):
    assert ["undecided", "703"] in [line.split() for line in printed(make.hasty()).splitlines()]


def test_every_measure_of_rank_has_a_row(make):
    text = " ".join(printed(make.result(make.softmax())).split())
    for measure in MEASURES:
        assert f"{measure.label} ".replace("\u00a0", " ") in text
    assert "stable rank 1.07" in text and "entropy rank 12.3" in text


def test_answers_stand_before_the_table(make):
    softmax, mos = make.softmax(), make.mos()
    question, first, *_ = printed(make.result(softmax)).splitlines()
    assert question == "Does the bound of one softmax limit this model?"
    assert first.startswith("Yes: rank 17 of at most 17 is used up")
    both = " ".join(printed(make.result(softmax, mos)).split())
    assert (
        "limit these models? softmax-0: Yes: " in both
        and "mos-0: No: the 4 components have" in both
    )
    assert both.index("mos-0: No") < both.index("perplexity, sampled")


def test_the_legend_is_one_line_and_the_page_has_the_rest(make):
    assert len(LEGEND) <= 80
    assert LEGEND in printed(make.result(make.softmax(), make.mos())).splitlines()


def test_numbers_that_need_a_control_have_it_below_them(make):
    lines = [line.split("  ") for line in printed(make.result(make.mos())).splitlines()]
    rows = [(line[0].strip(), line[-1].strip()) for line in lines]
    for label, value in (
        ("perplexity, sampled", "450.50"),
        ("numerical rank, float32", "17"),
        ("divergence", "0.2500"),
        ("I(component; token)", "0.0700"),
    ):
        below = rows[[row[0] for row in rows].index(label) + 1]
        assert below[0].startswith("– ") and below[1] == value


def test_the_text_is_named_and_whose_it_is_where_there_are_several(make):
    softmax, mos = make.softmax(), make.mos()
    assert "\nText: penn-treebank/test.\n" in printed(make.result(softmax, mos))
    other = replace(mos, text=replace(mos.text, name="my\x1b.txt"))
    text = printed(make.result(softmax, other))
    assert "\nText of softmax-0: penn-treebank/test.\nText of mos-0: my" in text
    assert "\x1b" not in text


def test_dead_components_have_a_row_if_there_is_a_mixture(make):
    assert "\n dead " in printed(make.result(make.softmax(), make.mos()))
    assert "\n dead " not in printed(make.result(make.softmax()))


def test_a_control_of_fewer_contexts_has_the_models_own_rank_of_as_many_beside_it(make):
    model = make.mos()
    fewer = replace(model.control, num_contexts=model.rank.growth[0].num_contexts)
    text = printed(make.result(replace(model, control=fewer)))
    assert "17 (own 797)" in text and "17 (own 797)" not in printed(make.result(model))
    assert OWN in text.splitlines() and OWN not in printed(make.result(model))


def test_what_is_missing_is_said_with_what_to_install(make):
    note = "not decided, as linear programs need scipy: pip install '.[cli]'"
    model = make.softmax(unargmaxable=None, unargmaxable_note=note)
    text = " ".join(printed(make.result(model)).split())
    assert f"Unargmaxable tokens of softmax-0: {note}." in text


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
    assert healthy.startswith("The components have specialised: components predict different")
    assert "I(component; token) = 0.310 nats" in healthy and "Dead" not in healthy
    assert "Dead, with hardly any weight: 1 and 3 of 3." in mixture_verdict(
        report(0.001, 0.998, 0.001)
    )
    for numbers in ({"specialisation": 1e-4}, {"gate_information": 1e-4}):
        assert "The components have collapsed" in mixture_verdict(report(0.5, 0.5, **numbers))


def test_perplexities_are_compared_on_the_same_text_only(make):
    one, two = make.softmax(), make.mos()
    assert comparison(("a",), (one,)) == ""
    assert "Perplexity after the same contexts: a 88.12 (2.35\u00a0M parameters) and b 88.12" in (
        comparison(("a", "b"), (one, two))
    )
    other = replace(two, text=replace(two.text, tokens_sha256="0"))
    assert "perplexities cannot be compared" in comparison(("a", "b"), (one, other))
