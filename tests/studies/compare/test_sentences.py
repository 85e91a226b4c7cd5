"""What is said of a comparison: every case of the answer, approved as a whole."""

import shlex
from dataclasses import replace

import pytest

from highrank.build import canonical
from highrank.cli.options import given_options, read_source
from highrank.cli.train import Options, _parse
from highrank.presets.dropout import dropout_of
from highrank.presets.small import fitted
from highrank.studies.compare.command import train_command
from highrank.studies.compare.measure import summarise_costs, summarise_regime
from highrank.studies.compare.plan import Regime, choose_dropout
from highrank.studies.compare.presets import Comparison, base_config
from highrank.studies.compare.recommendation import recommend
from highrank.studies.compare.result import Payoff
from highrank.studies.compare.sentences import answer, verdict
from highrank.studies.compare.variant import OUTPUT_DROPOUT, make_variants

# Heads, sizes d, and levels of the losses: of the control and the heads of each d.
CASES = {
    "a winner": (("mos", "moc"), (4,), (5.0, 4.8, 5.0)),
    "no difference": (("mos", "moc"), (4,), (5.0, 4.9995, 5.0)),
    "the softmax wins": (("mos", "moc"), (4,), (5.0, 5.3, 5.2)),
    "a larger softmax wins": (("mos",), (4, 8), (5.0, 4.8, 4.5, 4.6)),
    "a larger softmax is enough": (("mos",), (4, 8), (5.0, 4.9, 4.5, 4.4995)),
    "a larger softmax, no mixture": (("moc",), (4, 8), (5.0, 5.0, 4.5, 4.4995)),
    "the bottleneck matters": (("mos",), (4, 8), (5.0, 4.4, 4.8, 4.7)),
    "another head is the best": (("mos", "mos+pointer"), (4, 8), (5.0, 4.5, 4.9, 4.8, 4.8, 4.3)),
    "the larger mixture wins": (("mos",), (4, 8), (5.0, 4.5, 4.8, 4.4)),
    "an adaptive mixture alone": (("adaptive-mos",), (4,), (5.0, 4.7)),
    "adaptive, level": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.8, 4.8)),
    "adaptive, a winner": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.7, 4.8)),
    "adaptive, the softmax": (("adaptive-mos", "adaptive-softmax"), (4,), (5.0, 4.9, 4.8)),
    "a pointer beside softmaxes": (("mos:3+pointer",), (4,), (5.0, 4.7)),
}
# Levels of the losses of the control and the heads, on each of two networks.
NETWORKS = {
    "the same head on both": (("mos", "moc"), (5.0, 4.8, 4.9, 5.2, 5.0, 5.1)),
    "another head on each": (("mos", "moc"), (5.0, 4.8, 4.9, 5.2, 5.1, 5.0)),
    "a head on one": (("mos",), (5.0, 5.0005, 5.2, 5.1)),
    "no head": (("mos",), (5.0, 5.1, 5.2, 5.1995)),
}


@pytest.fixture
def say(make_plan, make_records):
    def make(specs, sizes, levels, **values):
        plan = make_plan(*specs, sizes=sizes, **{"seeds": (0, 1, 2, 3), **values})
        runs = make_records(plan, *levels)
        regime = summarise_regime(plan, runs, Regime.TOKENS)
        costs = summarise_costs(plan, runs, regime)
        choice = recommend(plan, [regime], costs, 10_000)
        return answer(plan, [regime], costs, True, "a text"), choice

    return make


def test_every_case_is_said_as_approved(say, approve):
    lines = []
    for name, case in CASES.items():
        text, choice = say(*case, corpus="a-text")
        lines += [f"# {name}", text, f"{choice.text}: {choice.evidence}.", choice.command, ""]
    approve("answers.txt", "\n".join(lines))


def test_networks_are_compared_by_their_best_heads(make_plan, make_records, approve):
    lines = []
    for name, (specs, levels) in NETWORKS.items():
        models = ("awd-lstm", "transformer")
        plan = make_plan(*specs, models=models, seeds=(0, 1, 2, 3), corpus="a-text")
        runs = make_records(plan, *levels)
        regime = summarise_regime(plan, runs, Regime.TOKENS)
        costs = summarise_costs(plan, runs, regime)
        choice = recommend(plan, [regime], costs, 10_000)
        said = verdict([regime], costs, "a text"), answer(plan, [regime], costs, True, "a text")
        lines += [f"# {name}", *said, f"{choice.text}: {choice.evidence}.", ""]
    approve("networks.txt", "\n".join(lines))


def test_one_seed_names_no_winner_and_an_exact_language_no_command(say, make_plan):
    text, choice = say(("mos",), (4,), (5.0, 4.0), seeds=(0,))
    assert text.startswith("One seed decides nothing") and choice is None
    assert (
        answer(make_plan(), [], [], False, "a text") == "Nothing has been measured on a text yet."
    )
    assert say(("mos",), (4,), (5.0, 4.8))[1].command == ""


def test_a_command_drops_as_much_as_its_own_length_wants(make_plan, make_records):
    """The comparison reads 10,000 tokens once, the command twenty times."""
    heads = ("mos", "untied-softmax")
    plan = make_plan(*heads, seeds=(0, 1, 2, 3), corpus="a-text", num_tokens=10_000)
    plan, regimes = choose_dropout(plan, 10_000), {}
    for best in (1, 2):
        runs = make_records(plan, *(4.5 if i == best else 5.0 for i in range(3)))
        regimes[best] = summarise_regime(plan, runs, Regime.TOKENS)
    mixture, untied = (recommend(plan, [regimes[best]], [], 10_000).command for best in (1, 2))
    wanted = dropout_of(plan.variants[1].config, 20 * 10_000, 10_000)
    assert plan.dropout == 0 < wanted
    assert f"--head.dropout {wanted} " in mixture
    assert f"--model.hidden-dropout {wanted} " in mixture
    assert f"--head.dropout {OUTPUT_DROPOUT} " in untied and "--model.no-tied" in untied


def test_a_head_that_does_not_pay_is_not_recommended(make_plan, make_records):
    """At equal tokens, MoS is better than MoC and both than the control, but takes four times."""
    plan = make_plan("mos", "moc", seeds=(0, 1, 2, 3), corpus="a-text")
    runs = make_records(plan, 5.0, 4.8, 4.85, cpu_seconds=[1.0, 4.0, 1.0])
    regime = summarise_regime(plan, runs, Regime.TOKENS)
    costs = summarise_costs(plan, runs, regime)
    assert [str(cost.verdict) for cost in costs] == ["does not pay", "pays"]
    choice = recommend(plan, [regime], costs, 10_000)
    assert choice.row == "moc-k3-d4" and "too slow to pay: MoS, K = 3 (d = 4" in choice.evidence
    assert verdict([regime], costs, "a text") == "MoS, K = 3 wins per token, not per second."
    assert "It does not pay for its time" in answer(plan, [regime], costs, True, "a text")
    # With nothing else to take, the control is.
    choice = recommend(plan, [regime], [replace(one, verdict=costs[0].verdict) for one in costs], 1)
    assert choice.row == "softmax-d4" and "no head that was better" in choice.evidence


def test_where_time_was_equal_the_table_of_costs_agrees(make_plan, make_records):
    plan = make_plan("mos", seeds=(0, 1, 2, 3), cpu_seconds=1.0)
    runs = make_records(plan, 5.0, 4.8, cpu_seconds=[1.0, 4.0])
    later = [replace(run, marks=run.marks | {Regime.TIME: run.marks["tokens"]}) for run in runs]
    regimes = [summarise_regime(plan, later, regime) for regime in Regime]
    (cost,) = summarise_costs(plan, later, *regimes)
    assert cost.verdict is Payoff.PAYS
    assert recommend(plan, regimes, [cost], 1).row == "mos-k3-d4"


@pytest.mark.parametrize(
    ("corpus", "num_train", "models"),
    [
        ("sotu", 2_122_080, ("awd-lstm", "transformer", "gated-cnn")),
        ("senses", 60_000, ("awd-lstm",)),
    ],
)
def test_the_recommended_command_trains_by_the_recipe_that_won(corpus, num_train, models):
    base = base_config(Comparison(corpus=corpus), 1_000_000)
    heads = ("mos:3,start_noise=0.1", "adaptive-softmax+pointer+ngram", "tied-softmax")
    counts = range(500, 0, -1)
    heads += ("untied-softmax", "doc:4", "adaptive-softmax")
    found = make_variants(base, heads, (3,), (16,), 500, counts, is_equal=True, models=models)
    for variant in found:
        wanted = replace(variant.config, seed=3, train=replace(variant.config.train, epochs=7))
        arguments = shlex.split(train_command(wanted, num_train))[2:]
        parsed = _parse(read_source(arguments, Options)).config
        found = fitted(parsed, num_train, given_options(arguments))
        assert found == canonical(wanted), variant.name
