"""The learning curve of a run, from its metrics."""

import math

import pytest

from highrank.report.training import learning_chart, learning_curve


def epoch(tokens, train, valid):
    losses = {"train_loss": math.log(train), "valid_loss": math.log(valid)}
    return {"event": "epoch", "tokens": tokens, **losses}


METRICS = [
    epoch(1_000_000, 323.0, 196.0),
    {"event": "grow", "tokens": 1_500_000, "num_components": 5},
    epoch(2_000_000, 110.0, 117.0),
    {"event": "end", "valid_loss": 4.0, "test_loss": 4.0},
]


def test_perplexities_are_drawn_against_millions_of_tokens():
    train, valid = learning_chart(METRICS).series
    assert train.x == valid.x == [1.0, 2.0]
    assert train.y == pytest.approx([323.0, 110.0]) and valid.y == pytest.approx([196.0, 117.0])


def test_growth_is_marked_where_it_happened():
    (mark,) = learning_chart(METRICS).marks
    assert mark.x == 1.5 and "K = 5" in mark.label
    assert learning_chart(METRICS[:1]).marks == ()


@pytest.mark.parametrize(
    ("metrics", "ticks"),
    [
        (METRICS, (100, 150, 200, 300, 500)),
        ([epoch(10, 120.0, 120.0)], (100, 150)),
        ([epoch(10, 99.999_999_999_9, 99.999_999_999_9)], (70, 100)),
    ],
)
def test_the_axis_has_round_numbers_around_the_data(metrics, ticks):
    assert learning_chart(metrics).y.ticks == pytest.approx(ticks)


def test_the_picture_is_a_png(tmp_path):
    learning_curve(METRICS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_validation_has_no_curve(tmp_path):
    with pytest.raises(ValueError, match="at least one validation, got none"):
        learning_curve(METRICS[-1:], tmp_path / "curve.png")
