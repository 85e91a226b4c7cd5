"""What an audit prints, its picture, and sentences that follow the numbers."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from highrank.analysis.rank import MEASURES
from highrank.studies.audit.page import audit_picture
from highrank.studies.audit.table import (
    answer,
    audit_table,
    comparison,
    effective_verdict,
    mixture_verdict,
    power,
    rank_verdict,
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
    assert text.count("797") == count and text.count("4.763 ± 0.012") == count + 1
    assert "softmax-0" in text and "predicts little" in " ".join(text.split())


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


def test_names_are_no_markup(make):
    assert "[b]x" in printed(make.result(replace(make.softmax(), name="[b]x")))


def test_tokens_for_which_there_was_no_time_are_undecided(make):
    assert ["undecided", "703"] in [line.split() for line in printed(make.hasty()).splitlines()]


def test_every_measure_of_rank_has_a_row_and_a_definition(make):
    text = " ".join(printed(make.result(make.softmax())).split())
    for measure in MEASURES:
        assert f"{measure.label} ".replace("\u00a0", " ") in text
        assert measure.definition in text
    assert "stable rank 1.07" in text and "entropy rank 12.3" in text


def test_names_are_short_and_tell_models_apart():
    named = [SimpleNamespace(name=n) for n in ("a/x", "b/y/", "c/y", "c/y", "org/" + "long" * 20)]
    assert short_names([SimpleNamespace(name="runs/_old")]) == ("…/_old",)
    assert short_names(named) == ("x", "b/y/", "c/y", "c/y (2)", "longlonglongl…nglonglonglong")


@pytest.mark.parametrize("value, text", [(1e-3, "10⁻³"), (2.1e-12, "3·10⁻¹²"), (9.5e-4, "10⁻³")])
def test_small_numbers_are_powers_rounded_up(value, text):
    assert power(value) == text


@pytest.fixture(scope="session")
def rank(make):
    """Facts about a rank, with the limit that is the least as the ceiling."""

    def build(found, bound=None, num_contexts=2000, num_tokens=1000):
        limits = {"contexts": num_contexts, "tokens": num_tokens}
        limits |= {} if bound is None else {"bound": bound}
        reason = min(limits, key=limits.__getitem__)
        return make.rank_facts(
            [1.0],
            bound=bound,
            num_contexts=num_contexts,
            num_tokens=num_tokens,
            measures=make.measures(found, found),
            unknown="it is hidden",
            bound_reason="these parts",
            ceiling=limits[reason],
            ceiling_reason=reason,
        )

    return build


@pytest.mark.parametrize(
    "found, limits, words",
    [
        (130, {"bound": 130}, "is 130, the highest that its form allows (these parts)."),
        (97, {"bound": 130}, "is 97; its form allows 130 (these parts)."),
        (131, {"bound": 130}, "That cannot be: do not trust this measurement."),
        (
            1000,
            {},
            "the number of tokens in the matrix allows 1,000 here. No bound on it is known.",
        ),
        (900, {"num_tokens": 900}, "No bound on it is known: with more tokens it may be higher."),
        (950, {"num_contexts": 990}, "with more contexts it may be higher."),
        (500, {}, "is 500; the number of tokens in the matrix allows 1,000 here. No bound on it"),
        (90, {"bound": 130, "num_contexts": 100}, "Its form allows 130: with more contexts it may"),
        (None, {}, "Its numerical rank is unknown: it is hidden."),
    ],
)
def test_a_rank_is_put_beside_what_it_could_have_been(rank, found, limits, words):
    assert words in rank_verdict(rank(found, **limits), vocab_size=1000)


def test_a_rank_far_below_all_limits_is_not_said_to_grow(rank):
    assert "may be higher" not in rank_verdict(rank(500), 1000)


def test_the_effective_rank_is_counted_in_directions(rank):
    facts = rank(500)
    assert effective_verdict(facts) == "20 directions carry all but 0.1% of the sum of squares."
    unknown = replace(facts, measures=dict.fromkeys(facts.measures))
    assert effective_verdict(unknown) == ""


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


def test_dead_and_collapsed_components_are_named(make):
    report = make.mixture_report
    assert "All 3 components are used." in mixture_verdict(report(0.4, 0.3, 0.3))
    dead = mixture_verdict(report(0.001, 0.998, 0.001))
    assert "2 of its 3 components are dead: 1 and 3." in dead
    collapsed = mixture_verdict(report(0.5, 0.5, specialisation=1e-4))
    assert "They have collapsed: the mixture is close to one softmax." in collapsed
    assert "I(component; token) is 0.31 nats" in mixture_verdict(report(0.5, 0.5))


def test_the_answer_is_one_sentence_about_the_rank(make):
    softmax, mos = make.softmax(), make.mos()
    alone = "The log-probabilities of a have a numerical rank that is"
    assert answer(("a",), (softmax,)) == f"{alone} 17, of at most 17."
    assert answer(("a",), (mos,)) == f"{alone} 797, with no known bound."
    assert answer(("a",), make.with_holes().models) == f"{alone} unknown."
    both = "b has the highest numerical rank, 797: 46.9 × that of a."
    assert answer(("a", "b"), (softmax, mos)) == both
    assert answer(("a", "b"), (mos, mos)) == "All have the numerical rank 797."
    hidden = make.with_holes().models[0]
    assert "known rank" in answer(("a", "b"), (mos, hidden))


def test_perplexities_are_compared_on_the_same_text_only(make):
    one, two = make.softmax(), make.mos()
    assert comparison(("a",), (one,)) == ""
    assert "Perplexity after the same contexts: a 88.12 (2.35\u00a0M parameters) and b 88.12" in (
        comparison(("a", "b"), (one, two))
    )
    other = replace(two, text=replace(two.text, tokens_sha256="0"))
    assert "perplexities cannot be compared" in comparison(("a", "b"), (one, other))
