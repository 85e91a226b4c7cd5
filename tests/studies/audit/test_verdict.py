"""The words follow the numbers."""

from types import SimpleNamespace

import pytest

from highrank.studies.audit.result import ComponentFacts, MixtureFacts, RankFacts
from highrank.studies.audit.table import power, short_names
from highrank.studies.audit.verdict import (
    effective_verdict,
    mixture_verdict,
    rank_verdict,
    reachability_verdict,
)


def rank(comparable, bound=None, num_contexts=2000, num_words=1000):
    limits = {"contexts": num_contexts, "words": num_words}
    limits |= {} if bound is None else {"bound": bound}
    reason = min(limits, key=limits.__getitem__)
    return RankFacts(
        num_contexts=num_contexts,
        num_words=num_words,
        method="stable",
        method_reason="",
        comparable=comparable,
        certified=comparable,
        unknown="it is hidden",
        bound=bound,
        bound_reason="these parts",
        ceiling=limits[reason],
        ceiling_reason=reason,
        effective=(),
        stable=1.0,
        entropy=1.0,
        largest=1.0,
        noise_floor=0.0,
        singular_values=(1.0,),
        growth=(),
    )


@pytest.mark.parametrize(
    "facts, words",
    [
        (rank(130, bound=130), "is 130, the highest that its form allows (these parts)."),
        (rank(97, bound=130), "is 97; its form allows 130 (these parts)."),
        (rank(131, bound=130), "That cannot be: do not trust this measurement."),
        (
            rank(1000),
            "the number of words in the matrix allows 1,000 here. No bound on it is known.",
        ),
        (rank(900, num_words=900), "No bound on it is known: with more words it may be higher."),
        (rank(950, num_contexts=990), "with more contexts it may be higher."),
        (rank(500), "is 500; the number of words in the matrix allows 1,000 here. No bound on it"),
        (rank(90, bound=130, num_contexts=100), "Its form allows 130: with more contexts it may"),
        (rank(None), "Its rank is unknown: it is hidden."),
    ],
)
def test_a_rank_is_put_beside_what_it_could_have_been(facts, words):
    assert words in rank_verdict(facts, vocab_size=1000)


def test_a_rank_far_below_all_limits_is_not_said_to_grow():
    assert "may be higher" not in rank_verdict(rank(500), 1000)
    assert effective_verdict(rank(500)) == ""


@pytest.mark.parametrize(
    "counts, words",
    [
        ((0, 0, 0), "Every word can be the most likely one."),
        ((1, 0, 0), "1 word can never be the most likely one (0.10% of all)."),
        (
            (25, 3, 0),
            "25 words can never be the most likely one (at least 2.50% of all); "
            "too close to call: 3.",
        ),
        (
            (0, 0, 900),
            "No word was found that can never be the most likely one; left for lack of time: 900.",
        ),
    ],
)
def test_unreachable_words_are_counted_and_gaps_admitted(counts, words):
    names = ("num_unreachable", "num_undecided", "num_untried")
    facts = SimpleNamespace(**dict(zip(names, counts, strict=True)))
    model = SimpleNamespace(reachability=facts, head=SimpleNamespace(vocab_size=1000))
    assert words in reachability_verdict(model)


def mixture(*dead, specialisation=0.3):
    components = tuple(
        ComponentFacts(
            mean_weight=0.2, largest_share=0.2, is_dead=is_dead, preferred=(), takeovers=()
        )
        for is_dead in dead
    )
    return MixtureFacts(
        num_contexts=9,
        weight_entropy=0.0,
        use_entropy=0.0,
        specialisation=specialisation,
        pair_divergence=(),
        num_dead=sum(dead),
        components=components,
    )


def test_dead_and_equal_components_are_named():
    assert "All 3 components are used." in mixture_verdict(mixture(False, False, False))
    assert "2 of its 3 components are dead: 1 and 3." in mixture_verdict(mixture(True, False, True))
    assert "close to one softmax" in mixture_verdict(mixture(False, False, specialisation=1e-4))
    assert "0.30 nats" in mixture_verdict(mixture(False, False))


def test_names_are_short_and_tell_models_apart():
    named = [SimpleNamespace(name=n) for n in ("a/x", "b/y/", "c/y", "c/y", "org/" + "long" * 20)]
    assert short_names([SimpleNamespace(name="runs/_old")]) == ("…/_old",)
    assert short_names(named) == ("x", "b/y/", "c/y", "c/y (2)", "longlonglongl…nglonglonglong")


@pytest.mark.parametrize("value, text", [(1e-3, "10⁻³"), (2.1e-12, "3·10⁻¹²"), (9.5e-4, "10⁻³")])
def test_small_numbers_are_powers_rounded_up(value, text):
    assert power(value) == text
