"""What is said of a comparison: every case of the answer, approved as a whole."""

import pytest

from highrank.studies.compare.measure import summarise_costs, summarise_regime
from highrank.studies.compare.plan import Regime
from highrank.studies.compare.sentences import answer, recommend

# Heads, sizes d, and levels of the losses: of the control and the heads of each d.
CASES = {
    "a winner": (("mos", "moc"), (4,), (5.0, 4.8, 5.0)),
    "no difference": (("mos", "moc"), (4,), (5.0, 4.9995, 5.0)),
    "the softmax wins": (("mos", "moc"), (4,), (5.0, 5.3, 5.2)),
    "a larger softmax wins": (("mos",), (4, 8), (5.0, 4.8, 4.5, 4.6)),
    "a larger softmax is enough": (("mos",), (4, 8), (5.0, 4.9, 4.5, 4.4995)),
    "a larger softmax, no mixture": (("moc",), (4, 8), (5.0, 5.0, 4.5, 4.4995)),
    "the bottleneck matters": (("mos",), (4, 8), (5.0, 4.4, 4.8, 4.7)),
    "another head is the best": (("mos", "pointer"), (4, 8), (5.0, 4.5, 4.9, 4.8, 4.8, 4.3)),
    "the larger mixture wins": (("mos",), (4, 8), (5.0, 4.5, 4.8, 4.4)),
    "an adaptive mixture alone": (("adaptive-mos",), (4,), (5.0, 4.7)),
    "adaptive, level": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.8, 4.8)),
    "adaptive, a winner": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.7, 4.8)),
    "adaptive, the softmax": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.9, 4.8)),
    "a pointer beside softmaxes": (("pointer:3",), (4,), (5.0, 4.7)),
}


@pytest.fixture
def say(make_plan, make_records):
    def make(specs, sizes, levels, **values):
        plan = make_plan(*specs, sizes=sizes, **{"seeds": (0, 1, 2, 3), **values})
        runs = make_records(plan, *levels)
        regime = summarise_regime(plan, runs, Regime.TOKENS)
        costs = summarise_costs(plan, runs, regime)
        choice = recommend(plan, [regime], costs, 10_000)
        return answer(plan, [regime], True, "a text"), choice

    return make


def test_every_case_is_said_as_approved(say, approve):
    lines = []
    for name, case in CASES.items():
        text, choice = say(*case, corpus="a-text")
        lines += [f"# {name}", text, f"{choice.text}: {choice.evidence}.", choice.command, ""]
    approve("answers.txt", "\n".join(lines))


def test_one_seed_names_no_winner_and_an_exact_language_no_command(say, make_plan):
    text, choice = say(("mos",), (4,), (5.0, 4.0), seeds=(0,))
    assert text.startswith("One seed decides nothing") and choice is None
    assert answer(make_plan(), [], False, "a text") == "Nothing has been measured on a text yet."
    assert say(("mos",), (4,), (5.0, 4.8))[1].command == ""
