"""The answer in one sentence, the table and the page."""

from dataclasses import replace

from rich.console import Console

from highrank.environment import environment
from highrank.studies.finetune.page import answer, finetune_page, finetune_table
from highrank.studies.finetune.result import FinetuneResult, compare_time, compare_tokens
from highrank.studies.finetune.settings import Settings

TIMES = {"softmax": 1.0, "residual": 2.0}


def result_of(arms):
    return FinetuneResult(
        settings=Settings(model="<base>", text="tale.txt", seeds=(0, 1)),
        num_train_tokens=5_000,
        num_valid_tokens=300,
        bytes_per_token=3.5,
        train_sha256="a",
        valid_sha256="b",
        arms=tuple(arms),
        equal_tokens=compare_tokens(arms, 64),
        step_seconds=TIMES,
        equal_time=compare_time(arms, TIMES),
        environment=environment(),
    )


def text_of(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return " ".join(capture.get().split())


def test_the_answer_has_both_comparisons(arms):
    assert answer(result_of(arms)) == (
        "At equal tokens MoS, residual is better than the softmax, by 0.1100 nats per token. "
        "At equal time MoS, residual is worse than the softmax, by 0.3900 nats per token."
    )


def test_one_seed_decides_nothing(arms):
    found = answer(result_of(arms[:2]))
    assert "0.1000 nats per token below the softmax, with one seed" in found


def test_a_collapsed_mixture_is_called_so(arms):
    for one in arms:
        if one.variant != "softmax":
            end = replace(one.points[-1].components, state="collapsed")
            last = replace(one.points[-1], components=end)
            arms[arms.index(one)] = replace(one, points=(*one.points[:-1], last))
    assert answer(result_of(arms)).endswith("collapsed: it predicts as one softmax does.")


def test_the_table_fits_and_has_units(arms):
    shown = text_of(finetune_table(result_of(arms)))
    assert "3.940 ± 0.040" in shown and "+0.110 ± 0.010" in shown and "1 of 4" in shown
    assert "after 6,400 tokens" in shown and "after 3 min 20 s" in shown


def test_the_page_escapes_names_and_draws_four_charts(arms):
    html = finetune_page(result_of(arms), "highrank finetune '<base>' tale.txt")
    assert html.count("<svg") == 4 and "&lt;base&gt;" in html and "<base>" not in html


def test_without_mixtures_two_charts_are_left(arms):
    bare = [
        replace(one, points=tuple(replace(point, components=None) for point in one.points))
        for one in arms
    ]
    assert finetune_page(result_of(bare), "x").count("<svg") == 2


def test_small_gains_are_no_difference(arms):
    for index, nats in ((1, 3.999), (3, 4.101)):
        *first, last = arms[index].points
        arms[index] = replace(arms[index], points=(*first, replace(last, valid_nats=nats)))
    found = answer(result_of(arms))
    assert "does not differ from the softmax by more than two standard errors" in found
