"""What the audit's curves are made of, against numpy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from highrank.studies.audit.charts import (
    MAX_POINTS,
    difference_chart,
    growth_chart,
    relative_values,
    residual_values,
    spectra_chart,
    style_of,
    thinned,
    use_chart,
)


def model(values, num_contexts=50, num_tokens=40, noise_floor=0.0, **options):
    rank = SimpleNamespace(
        singular_values=tuple(values),
        largest=values[0],
        noise_floor=noise_floor,
        num_contexts=num_contexts,
        num_tokens=num_tokens,
        **options,
    )
    return SimpleNamespace(rank=rank)


def test_what_is_left_is_the_error_of_the_best_approximation():
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    want = [
        np.square(matrix - (left[:, :k] * values[:k]) @ right[:k]).sum() / np.square(matrix).sum()
        for k in range(1, 6)
    ]
    np.testing.assert_allclose(residual_values(model(values.tolist())), want, atol=1e-14)


def test_values_that_are_zero_by_construction_or_noise_are_drawn_as_zero():
    assert relative_values(model([4.0, 2.0])) == [1.0, 0.5, 0.0]
    assert relative_values(model([4.0, 2.0], num_tokens=2)) == [1.0, 0.5]
    assert relative_values(model([4.0, 2.0, 0.1], num_tokens=3, noise_floor=0.2)) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("length", [1, 2, 131, 10_000])
def test_a_curve_keeps_its_ends_and_few_points(length):
    indices = thinned(length)
    assert indices[0] == 0 and indices[-1] == length - 1
    assert len(indices) <= MAX_POINTS + 1
    assert indices == sorted(set(indices)) and max(indices[-2:]) - min(indices[-2:]) <= 1
    assert length > MAX_POINTS or indices == list(range(length))


def test_ranks_that_are_unknown_leave_no_line():
    at = [
        SimpleNamespace(num_contexts=n, measures={"rank": rank})
        for n, rank in ((10, None), (40, 30), (80, 60))
    ]
    models = [model([1.0], growth=at), model([1.0], growth=at[:1])]
    guide, line = growth_chart(("a", "b"), models, "rank").series
    assert (guide.label, line.label) == ("one per context", "a")
    assert (line.x, line.y) == ((40, 80), (30, 60))
    assert growth_chart(("b",), models[1:], "rank") is None


def test_six_models_have_six_colours_and_markers_and_a_seventh_other_dashes():
    styles = [style_of(index) for index in range(6)]
    assert (
        len({style["color"] for style in styles}) == len({style["marker"] for style in styles}) == 6
    )
    seventh = style_of(6)
    assert seventh == styles[0] | {"linestyle": seventh["linestyle"]} and seventh != styles[0]


def test_curves_of_several_models_have_markers_bounds_and_the_round_off_of_float32(make):
    models = [make.softmax(), make.mos()]
    chart = spectra_chart(("a", "b"), models)
    assert [line.style["marker"] for line in chart.series] == ["o", "D"]
    (alone,) = spectra_chart(("a",), models[:1]).series
    assert alone.style["marker"] == ""
    assert chart.marks == ((17, "bound 17", chart.series[0].style["color"]),)
    # Press et al.: sqrt(m + n + 1) / 2 · ε.
    assert chart.levels == (pytest.approx(0.5 * 3001**0.5 * 2**-23),)


def test_components_are_compared_with_equal_use_and_with_no_token_in_common(make):
    report = make.mixture_report(0.5, 0.3, 0.2)
    assert use_chart(report).level == pytest.approx(1 / 3)
    assert difference_chart(report).level == pytest.approx(math.log(2))
    mean, nearest = difference_chart(report).series
    assert list(mean.y) == pytest.approx([0.115, 0.11, 0.115]) and nearest.y == [0.11] * 3
