"""Curves are compared where all models have got to; table and page are as they were approved.

`HIGHRANK_APPROVE=1 pytest tests/studies/finetune/test_page.py` writes the approved file anew.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from highrank.environment import environment
from highrank.studies.finetune.page import answer, finetune_page, finetune_table
from highrank.studies.finetune.result import (
    Components,
    FinetuneResult,
    MixtureState,
    Point,
    TrainedVariant,
    compare,
)
from highrank.studies.finetune.settings import Settings

APPROVED = Path(__file__).with_name("page.approved.txt")
SECONDS, TOKENS = {"softmax": 1.0, "residual": 2.0}, {"softmax": 64, "residual": 64}
STATE = Components(
    divergence=0.2,
    num_collapsed=1,
    num_dead=0,
    specialisation=0.3,
    gate_information=0.2,
    state=MixtureState.SPECIALISED,
)


def trained(variant, seed, curve, components=None):
    """A model with points (step, nats)."""
    points = tuple(
        Point(step=s, seconds=s, train_nats=n, valid_nats=n, components=components)
        for s, n in curve
    )
    return TrainedVariant(
        variant=variant, seed=seed, num_parameters=1000, num_trained=900, points=points
    )


def models(components=STATE, ends=(3.9, 3.98)):
    """A mixture that is better at equal tokens and worse at equal time, for two seeds."""
    return [
        trained("softmax", 0, [(0, 5.0), (100, 4.0), (200, 3.5)]),
        trained("residual", 0, [(0, 5.0), (100, ends[0])], components),
        trained("softmax", 1, [(0, 5.0), (100, 4.1), (200, 3.6)]),
        trained("residual", 1, [(0, 5.0), (100, ends[1])], components),
    ]


def result_of(variants):
    return FinetuneResult(
        settings=Settings(model="<base>", text="tale.txt", seeds=len(variants) // 2),
        num_train_tokens=5_000,
        num_valid_tokens=300,
        bytes_per_token=3.5,
        train_sha256="a",
        valid_sha256="b",
        variants=tuple(variants),
        equal_tokens=compare(variants, TOKENS),
        step_seconds=SECONDS,
        equal_time=compare(variants, SECONDS),
        environment=environment(),
    )


def test_equal_tokens():
    found = compare(models(), TOKENS)
    assert found.at == 6_400
    softmax, mixture = found.rows
    assert softmax.nats.value == pytest.approx(4.05) and softmax.gain is None
    assert mixture.gain.value == pytest.approx((0.1 + 0.12) / 2)
    assert mixture.gain.error == pytest.approx(0.01)


def test_equal_time_is_steps_times_the_time_of_a_step():
    found = compare(models(), SECONDS)
    assert found.at == 200
    assert [row.step for row in found.rows] == [200, 100]
    assert found.rows[1].gain.value == pytest.approx(((3.5 - 3.9) + (3.6 - 3.98)) / 2)


def test_what_is_not_trained_decides_nothing_and_keeps_its_loss():
    alone = replace(trained("softmax", 0, [(0, 5.0)]), num_trained=0)
    for costs in (TOKENS, SECONDS | {"softmax": None}):
        found = compare([alone, models()[1]], costs)
        assert found.rows[0].nats.value == 5.0
        assert found.rows[1].gain.value == pytest.approx(1.1)


def test_losses_between_evaluations_are_interpolated():
    softmax = models()[0]
    assert softmax.nats_at(150) == pytest.approx(3.75)
    assert softmax.nats_at(0) == 5.0 and softmax.nats_at(500) == 3.5


def text_of(html):
    """The text of a page's main part, with what its charts show to those who do not see them."""
    main = re.search("<main>.*</main>", html, flags=re.DOTALL)[0]
    main = re.sub(
        r'<div class="chart".*?aria-label="(.*?)">.*?</svg>', r"\1", main, flags=re.DOTALL
    )
    return re.sub("<.*?>", " ", main.replace("</td>\n", "</td>"), flags=re.DOTALL)


def test_table_and_page_are_as_approved():
    result = result_of(models())
    console = Console(width=100, legacy_windows=False)
    with console.capture() as capture:
        console.print(finetune_table(result))
    answers = {
        "one seed": models()[:2],
        "collapsed": models(replace(STATE, state=MixtureState.COLLAPSED)),
        "no difference": models(ends=(3.999, 4.101)),
    }
    parts = [f"{name}: {answer(result_of(found))}" for name, found in answers.items()]
    page = text_of(finetune_page(result, "highrank finetune '<base>' tale.txt"))
    lines = "\n".join([capture.get(), *parts, page]).splitlines()
    found = "".join(f"{line.rstrip()}\n" for line in lines if line.strip())
    if os.environ.get("HIGHRANK_APPROVE"):
        APPROVED.write_text(found, encoding="utf-8")
    assert found == APPROVED.read_text(encoding="utf-8")


def test_without_mixtures_two_charts_are_left():
    assert finetune_page(result_of(models(components=None)), "x").count("<svg") == 2
