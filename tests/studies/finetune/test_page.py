"""Curves are compared where all models have got to; table, answers and page as approved."""

import re
from dataclasses import replace

import pytest
from scipy.stats import ttest_rel

from highrank.analysis.components import MixtureState
from highrank.environment import Environment
from highrank.studies.finetune.measure import FinetuneResult, compare
from highrank.studies.finetune.page import answer, finetune_page, finetune_table, verdict
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.training import Components, Point, TrainedVariant

SECONDS = {"softmax": 1.0, "residual": 2.0, "linear": 1.0}
TOKENS = dict.fromkeys(SECONDS, 64)
WHERE = Environment(**dict.fromkeys(Environment.__dataclass_fields__, "1"))
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


def models(components=STATE, ends=(3.9, 3.99)):
    """A mixture that is better at equal tokens and worse at equal time, for two seeds."""
    return [
        trained("softmax", 0, [(0, 5.0), (100, 4.0), (200, 3.5)]),
        trained("residual", 0, [(0, 5.0), (100, ends[0])], components),
        trained("softmax", 1, [(0, 5.0), (100, 4.1), (200, 3.6)]),
        trained("residual", 1, [(0, 5.0), (100, ends[1])], components),
    ]


def result_of(variants):
    return FinetuneResult(
        settings=Settings(
            model="<base>",
            text="tale.txt",
            seeds=len({one.seed for one in variants}),
            starts=tuple(dict.fromkeys(one.variant for one in variants))[1:],
        ),
        num_train_tokens=5_000,
        num_valid_tokens=300,
        bytes_per_token=3.5,
        train_sha256="a",
        valid_sha256="b",
        variants=tuple(variants),
        equal_tokens=compare(variants, TOKENS),
        step_seconds=SECONDS,
        equal_time=compare(variants, SECONDS),
        environment=WHERE,
    )


def test_equal_tokens_are_those_that_all_models_have_read():
    found = compare(models(), TOKENS)
    softmax, mixture = found.rows
    assert found.at == 6_400 and softmax.gain is softmax.contrast is None
    assert softmax.nats.value == pytest.approx(4.05)
    assert mixture.gain.value == pytest.approx((0.1 + 0.11) / 2)
    assert mixture.gain.error == pytest.approx(0.005)
    want = ttest_rel([3.9, 3.99], [4.0, 4.1])
    assert mixture.contrast.p == pytest.approx(want.pvalue)
    interval = (mixture.contrast.low, mixture.contrast.high)
    assert interval == pytest.approx(tuple(want.confidence_interval()))


def test_equal_time_is_steps_times_the_time_of_a_step():
    found = compare(models(), SECONDS)
    assert found.at == 200 and [row.step for row in found.rows] == [200, 100]
    assert found.rows[1].gain.value == pytest.approx(((3.5 - 3.9) + (3.6 - 3.99)) / 2)
    # Between two evaluations the loss is interpolated, beyond the last it stays.
    assert [models()[0].nats_at(step) for step in (0, 150, 500)] == pytest.approx([5.0, 3.75, 3.5])


def with_linear(end, **values):
    """The models and a linear control that is as far below the softmax as is said."""
    softmax = [one for one in models() if one.variant == "softmax"]
    more = [
        trained("linear", one.seed, [(p.step, p.valid_nats - end * p.step) for p in one.points])
        for one in softmax
    ]
    return sorted([*models(**values), *more], key=lambda one: one.seed)


def test_the_mixture_is_compared_with_the_best_control():
    found = compare(with_linear(0.002), TOKENS)
    assert found.rows[1].gain.value == pytest.approx(0.105)
    assert (found.finding.variant, found.finding.control) == ("residual", "linear")
    assert found.finding.gain.value == pytest.approx(0.105 - 0.2)
    assert found.finding.contrast.difference == pytest.approx(0.2 - 0.105)
    assert compare(with_linear(-0.002), TOKENS).finding.control == "softmax"
    # Without a mixture the control itself is the finding.
    alone = [one for one in with_linear(0.002) if one.variant != "residual"]
    finding = compare(alone, TOKENS).finding
    assert (finding.variant, finding.control) == ("linear", "softmax")
    assert finding.gain.value == pytest.approx(0.4)


def test_what_is_not_trained_decides_nothing_and_keeps_its_loss():
    alone = replace(trained("softmax", 0, [(0, 5.0)]), num_trained=0)
    for costs in (TOKENS, SECONDS | {"softmax": None}):
        found = compare([alone, models()[1]], costs)
        assert found.rows[0].nats.value == 5.0
        assert found.rows[1].gain.value == pytest.approx(1.1)


def test_table_answers_and_page_are_as_approved(approve):
    result = result_of(with_linear(0.0001))
    approve("table.txt", finetune_table(result))
    answers = {
        "one seed": models()[:2],
        "collapsed": models(replace(STATE, state=MixtureState.COLLAPSED)),
        "no difference": models(ends=(3.999, 4.101)),
        "no control": models(),
        "a better control": with_linear(0.002),
        "a worse control": with_linear(0.0001),
    }
    lines = []
    for name, found in answers.items():
        one = result_of(found)
        assert len(verdict(one).split()) <= 12
        lines.append(f"{name}: {verdict(one)} {answer(one)}")
    approve("answers.txt", "\n".join(lines))
    page = finetune_page(result, "highrank finetune '<base>' tale.txt")
    approve("page.txt", page)
    approve("charts.txt", "\n".join(re.findall('aria-label="(.*?)"', page)))


def test_without_mixtures_two_charts_are_left():
    assert finetune_page(result_of(models(components=None)), "x").count("<svg") == 2
