import pytest

from highrank.report.formats import listed
from highrank.studies.demo.verdict import (
    equal_parameters,
    equal_sizes,
    leader_names,
    shown_size,
    verdict,
)

EQUAL = dict.fromkeys(("softmax", "moc", "mos", "matched"), 0.4)


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("moc", "MoC"), ("softmax", "Softmax")])
def test_who_wins_at_equal_size_follows_the_numbers(result_with, head, name):
    language = result_with("senses", **{**EQUAL, head: 0.001}).languages[1]
    assert verdict(equal_sizes(language)) == f"{name} has the lowest excess at every size."


@pytest.mark.parametrize("head, name", [("mos", "MoS"), ("moc", "MoC"), ("matched", "Softmax")])
def test_who_wins_at_equal_parameters_follows_the_numbers(result_with, head, name):
    language = result_with("factorised", **{**EQUAL, head: 0.001}).languages[0]
    assert verdict(equal_parameters(language)) == f"{name} has the lowest excess at every size."


def test_a_small_softmax_has_no_part_in_the_comparison_at_equal_parameters(result_with):
    language = result_with("senses", **{**EQUAL, "softmax": 0.0, "mos": 0.1}).languages[1]
    assert verdict(equal_parameters(language)) == "MoS has the lowest excess at every size."


def test_a_verdict_names_the_sizes_of_each_winner(result):
    assert verdict(equal_parameters(result.languages[1]), "where d") == (
        "Softmax has the lowest excess where d = 8; "
        "MoS has the lowest excess where d = 16, 32, 48 and 63."
    )


def test_what_is_compared_at_equal_parameters_has_equal_parameters(result):
    for language in result.languages:
        for fits in equal_parameters(language).values():
            assert {fit.head for fit in fits} == {"softmax", "moc", "mos"}
            assert len({fit.num_parameters for fit in fits}) == 1


@pytest.mark.parametrize("moc, mos", [(0.1, 0.1005), (0.0, 9e-6)])
def test_heads_that_hardly_differ_are_level(result_with, moc, mos):
    result = result_with("senses", moc=moc, mos=mos, matched=0.2)
    assert leader_names(equal_parameters(result.languages[1])[16]) == "MoC and MoS"


def test_the_size_looked_at_is_a_quarter_of_the_smallest_rank(result):
    assert shown_size(result) == 16


@pytest.mark.parametrize("items, text", [([1], "1"), ([1, 2], "1 and 2"), ("abc", "a, b and c")])
def test_a_list_reads_like_a_sentence(items, text):
    assert listed(items) == text
